"""Running the user's command once, on the code as it is, to see what its pmaps do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.source.command_error import CommandError
from pmapx._src.watch.run_in_copy import Command

# By name: to import the listener here would import JAX.
_LISTENER = "pmapx._src.codemod.evidence.proof_listener:start"


class ProofError(CommandError):
    """The command did not run to its end; the message is one line."""


def prove(command: Command, root: Path | None = None) -> Evidence:
    """Runs a command in the legacy mode and returns what was seen.

    ``root`` is the tree that it runs in a copy of; by default it runs in the tree itself.

    Raises:
      CannotRunError: if the tree cannot be copied, or the command cannot be started.
      ProofError: if it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="pmapx-") as folder:
        ran = command.run(_LISTENER, Path(folder), root, step="as it is")
        if ran.failure:
            raise ProofError(f"nothing is proven: {ran.failure}")
        return Evidence.read(Path(folder), ran.copy)
