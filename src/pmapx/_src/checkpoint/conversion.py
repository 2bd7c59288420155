"""The way from an old checkpoint to a new one, and what was done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pmapx._src.checkpoint import new_path, object_tree
from pmapx._src.checkpoint.base import Checkpoint, LeavesDifferError, is_array, loaded

Leaves = Sequence[tuple[str, Any]]
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was done, or would be."""

    kind: str
    n: int
    changed: tuple[str, ...]
    kept: tuple[str, ...]
    left: tuple[tuple[str, str], ...]  # Leaves without a device axis to remove or add, described.
    bytes_before: int  # Of the arrays.
    bytes_after: int


def refuse_hidden_arrays(leaves: Leaves, kept: Collection[str]) -> None:
    """Refuses objects that hold arrays and cannot be walked, unless the user keeps them."""
    plain = (str, bytes, bool, int, float, complex, np.generic)
    hidden = [
        f"{path} ({type(leaf).__module__}.{type(leaf).__qualname__})"
        for path, leaf in leaves
        if path not in kept
        and not is_array(leaf)
        and not isinstance(leaf, plain)
        and object_tree.holds_arrays(leaf)
    ]
    if hidden:
        raise LeavesDifferError(
            f"{len(hidden)} of {len(leaves)} leaves hold arrays in a class that is not a pytree",
            hidden,
            "Register the class with jax.tree_util, or leave the object as it is with --keep PATH",
        )


def report(
    checkpoint: Checkpoint,
    n: int,
    leaves: Leaves,
    changed: Collection[str],
    kept: Collection[str],
    scale: float,
) -> Conversion:
    """Summarizes a conversion that multiplies the size of changed arrays by ``scale``."""
    before = {path: leaf.nbytes for path, leaf in leaves if is_array(leaf)}
    after = [round(size * scale) if path in changed else size for path, size in before.items()]
    left = [
        (path, f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" if path in before
         else type(leaf).__name__)
        for path, leaf in leaves
        if path not in changed and path not in kept
        and not isinstance(leaf, str | bytes | None)  # Nobody would expect a device axis there.
    ]  # fmt: skip
    return Conversion(
        checkpoint.kind,
        n,
        tuple(path for path, _ in leaves if path in changed),
        tuple(path for path, _ in leaves if path in kept),
        tuple(left),
        sum(before.values()),
        sum(after),
    )


def save(
    checkpoint: Checkpoint,
    old: str,
    new: str,
    changed: Collection[str],
    change: Callable[[Any], Any],
    step: Callable[[Any], None],
) -> None:
    """Writes the new checkpoint, with ``change(array)`` in place of the ``changed`` leaves."""

    def written(path: str, leaf: Any) -> Any:
        step(leaf)
        return change(loaded(leaf)) if path in changed else leaf

    with new_path.written(old, new) as path:
        checkpoint.save(path, written)


def counter(leaves: Leaves, passes: int, progress: Progress | None) -> Callable[[Any], None]:
    """Returns a function to call with each leaf in each pass; it reports to ``progress``."""
    total = passes * sum(leaf.nbytes for _, leaf in leaves if is_array(leaf))
    done = 0

    def step(leaf: Any) -> None:
        nonlocal done
        if progress is not None and is_array(leaf):
            done += leaf.nbytes
            progress(done, total)

    return step
