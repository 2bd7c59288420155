"""What an open checkpoint offers, its leaves, and the errors that end a conversion."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from pmapx._src.source.command_error import CommandError


class CheckpointError(CommandError):
    """A checkpoint cannot be converted as asked; the message is one line for the user."""


class LeavesDifferError(CheckpointError):
    """The user has to decide on some leaves: copies that differ, or objects that hide arrays."""

    def __init__(self, summary: str, leaves: list[str], advice: str) -> None:
        super().__init__("; ".join([summary, *leaves, advice]))
        self.summary, self.leaves, self.advice = summary, leaves, advice


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array that is still in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Change = Callable[[str, Any], Any]


class Checkpoint(Protocol):
    kind: str

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yields the path and the value of each leaf; arrays may be ``StoredArray``."""

    def save(self, path: str, change: Change) -> None:
        """Writes the checkpoint with ``change(path, leaf)`` in place of each leaf."""


def is_array(leaf: Any) -> bool:
    if type(leaf) is np.ndarray:
        return not leaf.dtype.hasobject
    return isinstance(leaf, StoredArray | jax.Array)


def loaded(leaf: Any) -> Any:
    return leaf.read() if isinstance(leaf, StoredArray) else leaf
