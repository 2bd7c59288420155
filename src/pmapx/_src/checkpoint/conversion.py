"""What happens to each leaf of a checkpoint, what happened, and the way from old to new."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pmapx._src.checkpoint import new_path, object_tree
from pmapx._src.checkpoint.base import Checkpoint, LeavesDifferError, is_array, loaded

Progress = Callable[[int, int], None]


class Action(enum.Enum):
    CHANGE = "change"
    FIRST = "first"
    KEEP = "keep"
    LEAVE = "leave"


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was done, or would be.

    ``left`` are leaves without an axis to take off or put on, with what they are; ``bytes_before``
    and ``bytes_after`` count the arrays.
    """

    kind: str
    n: int
    changed: tuple[str, ...]
    kept: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    bytes_before: int
    bytes_after: int


def described(leaf: Any) -> str:
    if is_array(leaf):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return type(leaf).__name__


def is_silent(leaf: Any) -> bool:
    """Tells whether nobody would expect a device axis on a leaf."""
    return leaf is None or isinstance(leaf, str | bytes)


def refuse_hidden_arrays(leaves: Sequence[tuple[str, Any]], kept: set[str]) -> None:
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
    leaves: Sequence[tuple[str, Any]],
    actions: dict[str, Action],
    scale: float,
) -> Conversion:
    """Sums up; ``scale`` is what a changed array's size is multiplied by."""
    by_action: dict[Action, list[str]] = {action: [] for action in Action}
    before = after = 0
    for path, leaf in leaves:
        action = actions[path]
        by_action[action].append(path)
        if is_array(leaf):
            before += leaf.nbytes
            is_changed = action in (Action.CHANGE, Action.FIRST)
            after += round(leaf.nbytes * scale) if is_changed else leaf.nbytes
    values = dict(leaves)
    left = [path for path in by_action[Action.LEAVE] if not is_silent(values[path])]
    return Conversion(
        checkpoint.kind,
        n,
        (*by_action[Action.CHANGE], *by_action[Action.FIRST]),
        tuple(by_action[Action.KEEP]),
        tuple((path, described(values[path])) for path in left),
        before,
        after,
    )


def save(
    checkpoint: Checkpoint,
    old: str,
    new: str,
    actions: dict[str, Action],
    change: Callable[[Any], Any],
    step: Callable[[Any], None],
) -> None:
    """Writes the new checkpoint, with ``change(array)`` where the action is to change."""

    def changed(path: str, leaf: Any) -> Any:
        step(leaf)
        is_changed = actions[path] in (Action.CHANGE, Action.FIRST)
        return change(loaded(leaf)) if is_changed else leaf

    with new_path.written(old, new) as path:
        checkpoint.save(path, changed)


def counter(leaves: Sequence[tuple[str, Any]], passes: int, progress: Progress | None) -> Any:
    """Returns a function to call with each leaf in each pass; it reports to ``progress``."""
    total = passes * sum(leaf.nbytes for _, leaf in leaves if is_array(leaf))
    done = 0

    def step(leaf: Any) -> None:
        nonlocal done
        if progress is not None and is_array(leaf):
            done += leaf.nbytes
            progress(done, total)

    return step
