"""Proof that migrated code does what it did: the user's command, run on both versions.

``running`` starts the command with ``watching`` inside, which records what every map took and gave
(``functions``, ``leaves``, ``recording``). ``records`` reads that again, ``matching`` finds the
same function in both versions, ``comparing`` and ``judging`` compare its calls, ``summing_up`` and
``result`` say what came of it, and ``showing`` prints that. ``uses`` finds what ought to be
verified, and ``trees`` copies a tree to run in.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pmapx.migrate.verify import running
from pmapx.migrate.verify.result import SiteResult, Verification
from pmapx.migrate.verify.running import CALLS, TIMEOUT, CannotRunError, Run
from pmapx.migrate.verify.summing_up import sum_up
from pmapx.migrate.verify.tolerance import Tolerance
from pmapx.migrate.verify.uses import uses_below

__all__ = ["CannotRunError", "SiteResult", "Tolerance", "Verification", "verify"]

Progress = Callable[[str, float], None]


def verify(
    command: Sequence[str],
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    below: str = ".",
    devices: int | None = None,
    calls: int = CALLS,
    tolerance: Tolerance | None = None,
    timeout: float = TIMEOUT,
    exclude: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Runs a command on two versions of a program and compares what its maps took and gave.

    Example:
      >>> import pathlib, sys, tempfile
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
      below: where in the folders it runs.
      devices: how many virtual CPU devices both runs see; None is 8 on a machine with nothing but
        a CPU, and the machine's own devices otherwise.
      calls: how many calls of each function are recorded; the rest are counted.
      tolerance: what counts as within tolerance.
      timeout: after how many seconds a run is stopped.
      exclude: patterns of files and folders whose uses of pmap are not listed.
      env: the environment of both runs; by default this process's own.
      progress: called with ``before`` or ``after`` and the seconds that have passed.

    Returns:
      A result for each use of pmap.

    Raises:
      CannotRunError: if there is no such command.
    """
    roots = {"before": Path(before), "after": Path(after)}
    environment = dict(os.environ if env is None else env)
    if devices is None:
        devices = running.default_devices(environment)
    uses, _ = uses_below(roots["before"], exclude)
    _, needs_legacy = uses_below(roots["after"], exclude)
    # A copy inside the other version is no other version.
    is_inside = _is_inside(roots["before"], roots["after"])

    def run(side: str, folder: Path) -> Run:
        other = roots["after" if side == "before" else "before"]
        folder.mkdir()
        return running.run(
            command,
            roots[side],
            folder,
            cwd=roots[side] / below,
            elsewhere=None if is_inside else other,
            is_legacy=side == "before" or needs_legacy,
            devices=devices,
            calls=calls,
            timeout=timeout,
            env=environment,
            progress=None if progress is None else lambda seconds: progress(side, seconds),
        )

    with tempfile.TemporaryDirectory(prefix="pmapx-verify-") as kept:
        old = run("before", Path(kept, "before"))
        new = run("after", Path(kept, "after"))
        found = sum_up(old, new, uses, tolerance or Tolerance(), tuple(command))
    return found


def _is_inside(one: Path, other: Path) -> bool:
    first, second = (os.path.realpath(path) + os.sep for path in (one, other))
    return first.startswith(second) or second.startswith(first)
