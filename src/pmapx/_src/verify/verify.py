"""``verify``: runs a command on two versions of a program and compares their mapped functions."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.verify import runs
from pmapx._src.verify.compare.result import Verification
from pmapx._src.verify.compare.summary import sum_up
from pmapx._src.verify.compare.tolerance import Tolerance
from pmapx._src.verify.libraries import removed_name
from pmapx._src.verify.limits import CALLS, TIMEOUT
from pmapx._src.verify.runs import Run
from pmapx._src.verify.uses import uses_below

NEEDED = (
    "A library that the program uses needs {name}, which JAX removed: the migrated version ran in "
    "the legacy mode too."
)
Progress = Callable[[str, float], None]


def verify(
    command: Sequence[str],
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    below: str = ".",
    stands_for: str | os.PathLike[str] | None = None,
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

    Examples:
      >>> import pathlib, sys, tempfile
      >>> from pmapx._src.verify.verify import verify
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
      stands_for: the folder that both are copies of; paths to it in the command and in PYTHONPATH
        are redirected to the copies.
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
      CannotRunError: if there is no such command.
    """
    roots = {"before": Path(before), "after": Path(after)}
    environment = dict(os.environ if env is None else env)
    if devices is None:
        devices = runs.default_devices(environment)
    uses, _ = uses_below(roots["before"], exclude)
    uses = [use for use in uses if only is None or use.path in only]
    _, needs_legacy = uses_below(roots["after"], exclude)
    options: dict[str, Any] = {"devices": devices, "calls": calls, "timeout": timeout}
    options |= {"below": below, "env": environment, "progress": progress}

    def run(side: str, folder: Path, is_legacy: bool) -> Run:
        return _run(command, roots, stands_for, side, folder, is_legacy=is_legacy, **options)

    with tempfile.TemporaryDirectory(prefix="pmapx-verify-") as kept:
        old = run("before", Path(kept, "before"), is_legacy=True)
        new = run("after", Path(kept, "after"), is_legacy=needs_legacy)
        name = "" if needs_legacy or not new.status else removed_name(new.output, roots["after"])
        if name:
            new = run("after", Path(kept, "again"), is_legacy=True)
        found = sum_up(old, new, uses, tolerance or Tolerance(), tuple(command))
    return dataclasses.replace(found, notes=(NEEDED.format(name=name),)) if name else found


def _run(
    command: Sequence[str],
    roots: Mapping[str, Path],
    stands_for: str | os.PathLike[str] | None,
    side: str,
    folder: Path,
    *,
    is_legacy: bool,
    below: str,
    env: Mapping[str, str],
    progress: Progress | None,
    **limits: Any,
) -> Run:
    """Runs the command on one side, ``before`` or ``after``."""
    root = roots[side]
    redirect = functools.partial(_redirected, old=stands_for, new=root)
    paths = map(redirect, env.get("PYTHONPATH", "").split(os.pathsep))
    versions = [*roots.values(), *([] if stands_for is None else [Path(stands_for)])]
    return runs.run(
        list(map(redirect, command)),
        root,
        folder,
        cwd=root / below,
        elsewhere=[each for each in versions if not _overlap(each, root)],
        is_legacy=is_legacy,
        env={**env, "PYTHONPATH": os.pathsep.join(paths)},
        progress=None if progress is None else functools.partial(progress, side),
        **limits,
    )


def _overlap(one: Path, other: Path) -> bool:
    first, second = (os.path.realpath(path) + os.sep for path in (one, other))
    return first.startswith(second) or second.startswith(first)


def _redirected(text: str, old: str | os.PathLike[str] | None, new: Path) -> str:
    """Returns an argument or path with the folder ``new`` in place of ``old``."""
    name, equals, path = text.rpartition("=")
    if old is None or not os.path.isabs(path):
        return text
    below = os.path.relpath(os.path.realpath(path), os.path.realpath(old))
    copy = new / below
    # Links in the copy, such as an environment, are used as they are.
    if below.startswith("..") or not os.path.realpath(copy).startswith(os.path.realpath(new)):
        return text
    return f"{name}{equals}{copy}"
