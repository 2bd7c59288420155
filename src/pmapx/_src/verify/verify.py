"""``verify``: runs a command on two versions of a program and compares their mapped functions."""

import dataclasses
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pmapx._src.distributed import launcher
from pmapx._src.verify.compare.compare_arrays import Tolerance
from pmapx._src.verify.compare.result import Verification
from pmapx._src.verify.compare.summary import sum_up
from pmapx._src.verify.limits import CALLS, TIMEOUT
from pmapx._src.verify.record import reader
from pmapx._src.verify.record.reader import Run
from pmapx._src.verify.uses import uses_below
from pmapx._src.watch.run_in_copy import Command, Progress, Ran

NEEDED = (
    "A library that the program uses needs {name}, which JAX removed: the migrated version ran in "
    "legacy mode too."
)
WROTE = (
    "The program wrote to {path}, which is too large to copy: it changed the file in your tree, "
    "and the next run saw it."
)
_START = "pmapx._src.verify.record.recording:start"
# The end of a failed command's output that is shown.
_MOST_SHOWN = 4000
_FILE = re.compile(r'File "([^"]+)", line \d+')
_REMOVED = re.compile(
    r"(?:AttributeError|ImportError): .*?\b"
    r"(device_put_replicated|device_put_sharded|PmapSharding|jax_pmap_\w+)\b"
)


def verify(
    command: Sequence[str],
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    below: str = ".",
    changed: Mapping[Path, bytes] | None = None,
    devices: int | None = None,
    calls: int = CALLS,
    tolerance: Tolerance | None = None,
    timeout: float = TIMEOUT,
    exclude: Sequence[str] = (),
    only: Collection[str] | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Runs a command on two versions of a program and compares the calls of mapped functions.

    Each run gets a fresh copy of its folder, and paths to the folder in the command and in
    PYTHONPATH are redirected to the copy.

    Examples:
      >>> import pathlib, sys, tempfile
      >>> from pmapx import verify
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> program = "import jax, numpy as np; print(jax.pmap(abs)(np.ones(1)))"
      >>> for version in ("before", "after"):
      ...     (folder / version).mkdir()
      ...     _ = (folder / version / "run.py").write_text(program)
      >>> found = verify([sys.executable, "run.py"], folder / "before", folder / "after")
      >>> [(site.function, site.state, site.agreement) for site in found.sites]
      [('abs', 'verified', 'equal to the bit')]

    Args:
      command: the program and its arguments, as they are run in either folder.
      before: the folder with the code that uses pmap; it runs in the legacy mode.
      after: the folder with the migrated code.
      below: the working directory, relative to the folders.
      changed: the new contents of files in the folder ``after``, by their real paths.
      devices: the number of virtual CPU devices of both runs; by default 8 on a machine with a CPU
        only, and the machine's own devices otherwise.
      calls: how many calls of each function are recorded; the rest are counted.
      tolerance: the tolerance of the comparison.
      timeout: the seconds after which a run is stopped.
      exclude: patterns of files and folders whose uses of pmap are not listed.
      only: the files, relative to the folders, whose uses are listed; by default all.
      env: the environment of both runs, by default that of this process.
      progress: called with ``before`` or ``after`` and the seconds that have passed.

    Returns:
      A result for each use of pmap.

    Raises:
      CannotRunError: if there is no such command, or a folder cannot be copied.
    """
    roots = {"before": Path(before), "after": Path(after)}
    running = Command(command, devices=devices, timeout=timeout, env=env, progress=progress)
    uses, _ = uses_below(roots["before"], exclude)
    uses = [use for use in uses if only is None or use.path in only]
    _, needs_legacy = uses_below(roots["after"], exclude, changed)
    settings = {"elsewhere": [*map(os.path.realpath, roots.values())], "calls": calls}
    notes: list[str] = []

    def run(side: str, folder: Path, is_legacy: bool) -> Run:
        ran = running.run(
            _START, folder, roots[side], cwd=roots[side] / below, settings=settings,
            changed=changed if side == "after" else None, is_legacy=is_legacy, step=side,
        )  # fmt: skip
        notes.extend(WROTE.format(path=path) for path in ran.written)
        return _recorded(ran, folder)

    with tempfile.TemporaryDirectory(prefix="pmapx-verify-") as kept:
        old = run("before", Path(kept, "before"), True)
        new = run("after", Path(kept, "after"), needs_legacy)
        name = "" if needs_legacy or not new.status else removed_name(new.output, roots["after"])
        if name:
            new = run("after", Path(kept, "again"), True)
            notes.append(NEEDED.format(name=name))
        found = sum_up(old, new, uses, tolerance or Tolerance(), tuple(command))
    return dataclasses.replace(found, notes=tuple(dict.fromkeys(notes)))


def _recorded(ran: Ran, folder: Path) -> Run:
    first = launcher.failed_first(ran.output) if ran.status else None
    shown = ran.output[-_MOST_SHOWN:].strip()
    return Run(ran.status, ran.seconds, reader.read(folder), shown, first)


def removed_name(output: str, root: Path) -> str:
    """Returns the removed name of JAX that a library used, from the output of a failed run.

    Empty if there is none, or if a file below ``root``, which is the program's own, used it.

    >>> asked = 'File "/env/lib/site-packages/kfac/p.py", line 7, in f\\nAttributeError: jax.%s'
    >>> removed_name(asked % "device_put_replicated is deprecated", Path("/home/me/lab"))
    'device_put_replicated'
    >>> removed_name(asked % "device_put_replicated is deprecated", Path("/env"))
    ''
    """
    found = next(reversed(list(_REMOVED.finditer(output))), None)
    if found is None:
        return ""
    files = [file for file in _FILE.findall(output, 0, found.start()) if "/jax/" not in file]
    if not files or os.path.realpath(files[-1]).startswith(os.path.realpath(root) + os.sep):
        return ""
    return found[1]
