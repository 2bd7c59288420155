"""A mapped body on shards without the leading device axis of size 1 that stacked arrays have."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pmapx._src.batch_parallel.traces import PER_DEVICE
from pmapx._src.batch_parallel.verdict import Output, Verdict

SINGLE = -1
"""The position of a result that is not a tuple."""
COPIES, SPLIT, OTHER = "copies", "split", "other"
"""A stacked result over the global batch: n equal copies of it, its examples by device, or per
example along another axis than the first."""


@dataclasses.dataclass
class UnstackedBody:
    """A body that takes and returns shards without their device axis.

    Attributes:
      arguments: shapes of its arguments.
      axes: for each leaf, its batch axis.
      stacked: positions of the arguments that have no device axis any more.
      per_device: positions of those that are one value for each device, as a key.
      batch_axis: the axis of the examples in these; 1 after an axis that the body scans over.
    """

    fun: Callable[..., Any]
    arguments: tuple[Any, ...]
    axes: Any
    stacked: set[int]
    per_device: set[int]
    batch_axis: int
    _taken: Sequence[bool]
    _is_stacked_result: Callable[[Any], list[bool]]
    _results: list[tuple[int, bool]] = dataclasses.field(default_factory=list)

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        given = [x[None] if t else x for x, t in zip(leaves, self._taken, strict=True)]
        result = self.fun(*jax.tree.unflatten(tree, given))
        leaves, tree = jax.tree.flatten(result)
        is_sharded = self._is_stacked_result(result)
        drops = [s and jnp.shape(x)[:1] == (1,) for x, s in zip(leaves, is_sharded, strict=True)]
        parts = result if isinstance(result, tuple) else [result]
        positions = [
            at if isinstance(result, tuple) else SINGLE
            for at, part in enumerate(parts)
            for _ in jax.tree.leaves(part)
        ]
        if not self._results:  # The first trace is that of one device's shards.
            self._results = list(zip(positions, drops, strict=True))
        dropped = [x[0] if drop else x for x, drop in zip(leaves, drops, strict=True)]
        return jax.tree.unflatten(tree, dropped)

    @property
    def has_axes(self) -> bool:
        """Whether anything has a device axis."""
        return any(self._taken) or any(drop for _, drop in self._results)

    def is_stacked(self, number: int) -> bool:
        """Whether a leaf of the result has a device axis."""
        return self._results[number][1]

    def explained(self, found: Verdict) -> Verdict:
        """Returns a verdict whose reason names the arguments that were taken for batches."""
        [reason, *_] = found.reasons
        if found.traces is not None or reason.operation != "the body" or not self.stacked:
            return found
        which = " and ".join(named_argument(self.fun, at) for at in sorted(self.stacked))
        short = textwrap.shorten(reason.why, 150, placeholder=" ...")
        kind = "not all of them batches" if len(self.stacked) > 1 else "which is not a batch"
        why = f"takes {which} with a device axis, {kind}: it {short}"
        return dataclasses.replace(
            found, outputs=(Output(reason=dataclasses.replace(reason, why=why)),)
        )

    def results(self, outputs: Sequence[Output]) -> dict[int, set[str]]:
        """Returns what stacked results are over the global batch, by position."""
        found = collections.defaultdict(set)
        for (position, drop), output in zip(self._results, outputs, strict=True):
            if drop:
                found[position].add({None: COPIES, 0: SPLIT}.get(output.batch_axis, OTHER))
        return dict(found)


def named_argument(fun: Callable[..., Any], position: int) -> str:
    """Returns an argument with its name in the source, if that is known."""
    try:
        parameter = list(inspect.signature(fun).parameters.values())[position]
    except (ValueError, TypeError, IndexError):
        return f"argument {position}"
    is_named = parameter.kind is not parameter.VAR_POSITIONAL
    return f"argument {position}" + (f" `{parameter.name}`" if is_named else "")


def unstacked(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    axes: Sequence[Any],
    is_stacked_result: Callable[[Any], list[bool]],
    batch_axis: int | None = 0,
) -> UnstackedBody:
    """Returns a body without device axes; one value for each device has no batch axis then.

    Args:
      fun: the function that ``jax.shard_map`` maps.
      arguments: the shapes of a device's shards.
      axes: for each leaf of them, the sharded dimension.
      is_stacked_result: for a result, whether each leaf is sharded along its first dimension.
      batch_axis: the axis of the examples in arguments without their device axis; None if no
        argument has a device axis.
    """
    leaves, tree = jax.tree.flatten(tuple(arguments))
    has_axes, batch_axis = batch_axis is not None, batch_axis or 0
    one = [has_axes and a == 0 and x.shape[0] == 1 for x, a in zip(leaves, axes, strict=True)]
    taken = [
        o and x.ndim > 1 + batch_axis and not _is_key(x) for x, o in zip(leaves, one, strict=True)
    ]
    kinds = [
        batch_axis if t else PER_DEVICE if o else axis
        for t, o, axis in zip(taken, one, axes, strict=True)
    ]
    shapes = [
        jax.ShapeDtypeStruct(x.shape[1:], x.dtype, weak_type=x.weak_type) if t else x
        for x, t in zip(leaves, taken, strict=True)
    ]
    by_argument = jax.tree.unflatten(tree, taken)
    lone = jax.tree.unflatten(tree, [kind == PER_DEVICE for kind in kinds])
    return UnstackedBody(
        fun,
        jax.tree.unflatten(tree, shapes),
        jax.tree.unflatten(tree, kinds),
        {at for at, part in enumerate(by_argument) if any(jax.tree.leaves(part))},
        {at for at, part in enumerate(lone) if any(jax.tree.leaves(part))},
        batch_axis,
        taken,
        is_stacked_result,
    )


def _is_key(x: Any) -> bool:
    """Whether a shard is a random key: a typed one, or the data of one."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return True
    return bool(x.dtype == jnp.uint32 and x.ndim == 2 and x.shape[1] in (2, 4))
