"""Running the user's command once, on the code as it is, to see what its pmaps do."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.source.command_error import CommandError
from pmapx._src.verify.compare.summary import last_line
from pmapx._src.verify.tree_copies import copy_beside
from pmapx._src.watch.command import INSTALL, run

# By name: to import the listener here would import JAX.
HOOKS = (INSTALL, "pmapx._src.codemod.evidence.proof_listener:start")


class ProofError(CommandError):
    """The command did not run to its end; the message is one line."""


def prove(
    command: Sequence[str],
    *,
    devices: int | None = None,
    timeout: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    root: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evidence:
    """Runs a command in the legacy mode, in a copy of a tree, and returns what was seen.

    Args:
      command: the program and its arguments.
      devices: the number of virtual CPU devices; None leaves the devices alone.
      timeout: the seconds after which it is stopped.
      cwd: the folder that it runs in, by default the current one.
      root: the tree that it runs in a copy of; by default it runs in the tree itself.
      progress: called with the seconds that have passed.

    Raises:
      CannotRunError: if the tree cannot be copied.
      ProofError: if there is no such command, it fails, or it takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="pmapx-") as folder:
        log = Path(folder) / "errors"
        copied = None
        if root is not None:
            here = os.path.relpath(os.path.realpath(cwd or os.curdir), root)
            copy = copy_beside(root, Path(folder) / "tree", {})
            copied = (Path(os.path.realpath(copy.path)), root)
            cwd = copied[0] / here
        try:
            status = run(
                command,
                HOOKS,
                folder,
                devices=devices,
                cwd=cwd,
                log=log,
                logs_stdout=False,
                timeout=timeout,
                progress=progress,
            )
        except FileNotFoundError as error:
            raise ProofError(str(error)) from None
        if status is None:
            raise ProofError(
                f"the command did not end within {timeout:g} seconds: give it fewer steps, or "
                "more time with --timeout"
            )
        if status:
            last = last_line(log.read_text(errors="replace"))
            raise ProofError(
                f"the command failed with status {status}, so nothing is proven{last} "
                f"(command: {shlex.join(command)[:200]})"
            )
        return Evidence.read(Path(folder), copied)
