"""A mapped function traced for other devices, and an explanation where its shapes do not fit."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from pmapx._src import errors


class Retraced(NamedTuple):
    """A trace for other devices, with the shapes and dtypes of its arguments on them.

    ``grown`` are the names of the arguments that are larger on them.
    """

    traced: jax.stages.Traced
    mesh: Mesh
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grown: tuple[str, ...] = ()


def grown_names(
    paths: Sequence[str], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """Names the arguments that differ in shape.

    >>> grown_names(["w", "x"], [(4,), (8, 3)], [(4,), (64, 3)])
    ('x: (8, 3) -> (64, 3)',)
    """
    return tuple(
        f"{path}: {tuple(old)} -> {tuple(new)}"
        for path, old, new in zip(paths, before, after, strict=True)
        if tuple(old) != tuple(new)
    )


@contextlib.contextmanager
def explained(function: str, count: int, grown: Sequence[str]) -> Iterator[None]:
    """Explains an error of a trace with other shapes than the program has here."""
    try:
        yield
    except errors.PmapxError:
        raise
    except (TypeError, ValueError) as error:
        raise errors.ShapesDoNotFit(function, count, grown, error) from error


def divided(function: str, path: str, size: int, count: int) -> int:
    """Returns the size of a shard of a dimension that keeps its size on more devices."""
    if size % count:
        raise errors.UndividedState(function, path, size, count)
    return size // count


def grown_size(size: int, before: int, after: int, exponent: int) -> int:
    """Returns the size of a dimension that grows like a power of the number of devices.

    >>> grown_size(24, 8, 16, 1), grown_size(64, 8, 16, 2)
    (48, 256)
    """
    return size * after**exponent // before**exponent
