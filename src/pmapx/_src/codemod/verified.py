"""Verification of a migration before it is written, in copies of the tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.codemod.program import Migration
from pmapx._src.codemod.report.page import State, Verdict
from pmapx._src.verify.compare.result import Verification
from pmapx._src.verify.verify import verify
from pmapx._src.watch.tree_copies import tree_around

NO_MAP = "not a mapped function: its result is compared as the argument of one"


def verify_migration(
    done: Migration,
    command: Sequence[str],
    verifying: Callable[..., Verification] = verify,
    **options: Any,
) -> tuple[Verification, dict[tuple[str, int], Verdict]]:
    """Runs a command on two copies of the tree around the current folder, one of them migrated.

    Returns the verification, and the verdict on each site by file and line, for the report.

    Raises:
      CannotRunError: if the tree cannot be copied, or the command cannot be started.
    """
    here = Path(os.path.realpath(os.curdir))
    changed = {Path(os.path.realpath(file.path)): file.after for file in done.changed}
    root = tree_around(here, list(changed))
    below = os.path.relpath(here, root)
    only = {os.path.relpath(os.path.realpath(file.path), root) for file in done.files}
    found = verifying(command, root, root, below=below, changed=changed, only=only, **options)
    return found, _verdicts(done, found, root)


def _verdicts(done: Migration, found: Verification, root: Path) -> dict[tuple[str, int], Verdict]:
    verdicts = {}
    for file in done.files:
        path = os.path.relpath(os.path.realpath(file.path), root)
        for outcome in file.outcomes:
            line = outcome.place.line
            site = found.at(path, line)
            if site is not None:
                notes = [site.agreement, site.detail, *site.notes[:3]]
                note = "; ".join(part for part in notes if part)
                verdicts[file.path, line] = Verdict(State(site.state), note)
            elif not outcome.what.startswith("jax.pmap"):
                verdicts[file.path, line] = Verdict(State.UNVERIFIED, NO_MAP)
    return verdicts
