"""What ``pmapx migrate`` does before it rewrites: its options are checked, its command is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmapx._src.cli._terminal import Progress

if TYPE_CHECKING:
    from pmapx._src.codemod.program import Migration


def problem(
    command: Sequence[str] | None,
    to: str,
    style: str,
    mesh: str,
    with_fsdp: bool,
    topology: str | None,
    helpers: str | None,
    is_verified: bool,
    is_named: bool,
    is_stacked: bool,
) -> str:
    """Returns why options cannot be combined, with the fix; empty if they can."""
    is_jit = to == "jit"
    wrong = {
        "--to jit needs a command to run, which shows what each step computes: "
        "--to jit -- python train.py --steps 3": is_jit and not command,
        "--to jit needs --style global, where batches are global arrays": is_jit
        and style != "global",
        "--mesh needs --to jit": mesh != "auto" and not is_jit,
        "--fsdp shards the state of jitted steps: add --to jit -- python train.py": with_fsdp
        and not is_jit,
        "--fsdp needs --mesh auto: with Explicit axes JAX does not choose shardings": with_fsdp
        and mesh == "explicit",
        "--topology needs --to jit; pmapx audit --topology audits a program as it is": not is_jit
        and topology is not None,
        "--helpers needs --to shard_map or --to jit: --to pmapx adds no functions": to == "pmapx"
        and helpers is not None,
        "--verify needs a command: --verify -- python train.py --steps 3": is_verified
        and not command,
        "a command after -- needs --verify, --style global or --style replicated": is_stacked
        and command is not None
        and not is_verified,
        "--replicated needs --style global or --style replicated": is_named and is_stacked,
    }
    return next((text for text, is_so in wrong.items() if is_so), "")


def migrated(
    paths: Sequence[str],
    words: Sequence[str] | None,
    *,
    is_stacked: bool,
    devices: int | None,
    timeout: float,
    **options: Any,
) -> Migration:
    """Runs the user's command on copies of the code, if there is one, and rewrites the code."""
    from pmapx._src.codemod.evidence.evidence import Evidence
    from pmapx._src.codemod.evidence.proof_run import prove
    from pmapx._src.codemod.migration import migrate
    from pmapx._src.watch.run_in_copy import Command

    is_jit = options["to"] == "jit"
    is_proven = bool(words) and not is_stacked and _has_maps(paths, options["exclude"])
    if words and (is_proven or is_jit):
        command = Command(words, devices=devices, timeout=timeout)
    if is_proven:
        with Progress("Running the command") as progress:
            command.progress = progress.show
            options["evidence"] = prove(command, _tree(paths))
    if is_jit:
        options.setdefault("evidence", Evidence())
        with Progress("Running the program ({})") as progress:
            command.progress = progress.show
            return migrate(paths, command=command, **options)
    with Progress("Reading and rewriting", is_ticking=True) as progress:
        return migrate(paths, progress=progress.advance, **options)


def _has_maps(paths: Sequence[str], exclude: Sequence[str]) -> bool:
    """Returns whether a file names pmap, so that a run may show something."""
    from pmapx._src.source import files
    from pmapx._src.source.discovery import files_below

    texts = (files.read_bytes(path) for path in files_below(paths, exclude=exclude)
             if isinstance(path, str))  # fmt: skip
    return any(isinstance(text, bytes) and b"pmap" in text for text in texts)


def _tree(paths: Sequence[str]) -> Path | None:
    """Returns the tree to run in a copy of, None where no folder but the root has all paths."""
    from pmapx._src.watch.tree_copies import CannotRunError, tree_around_paths

    try:
        return tree_around_paths(paths)
    except CannotRunError:
        return None
