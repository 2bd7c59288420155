"""A mapped body, traced as each device runs it and as one device runs the global batch."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from pmapx._src.batch_parallel.kinds import UnprovenError
from pmapx._src.replication import source_locations
from pmapx._src.trees.checked_leaves import is_key

PER_DEVICE = "per device"
"""Where an argument's batch axis is expected: it differs between devices and has none."""
BatchAxis = int | None | str
"""The sharded axis of an argument as the body takes it; None: replicated; or `PER_DEVICE`."""


class OtherTraceError(UnprovenError):
    """A body that cannot be traced for the global batch as it is for a device's shard of it."""

    def __init__(self, why: str, local: ClosedJaxpr) -> None:
        super().__init__(why)
        self.local = local


@dataclasses.dataclass(frozen=True)
class Traces:
    """The jaxprs of a body."""

    local: ClosedJaxpr  # As each of n devices runs it.
    alone: ClosedJaxpr  # The same on a mesh of one device, to tell constants that come from n.
    global_: ClosedJaxpr  # On a mesh of one device with the global batch.
    batch_axes: tuple[BatchAxis, ...]  # The batch axis of each leaf of the arguments.
    names: tuple[str, ...]  # The names of these leaves.
    out_tree: Any  # The structure of what the body returns.


def trace(
    body: Callable[..., Any],
    arguments: Sequence[Any],
    batch_axes: Sequence[Any],
    axis_name: Hashable,
    axis_size: int,
    growth: int = 1,
) -> Traces:
    """Traces a body, for batches that are some times larger; see `verdict.decide`."""
    leaves, tree = jax.tree.flatten(tuple(arguments))
    is_leaf = lambda axis: axis is None or isinstance(axis, int | str)
    axes: list[BatchAxis] = []
    for axis, argument in zip(batch_axes, arguments, strict=True):
        wide = jax.tree.map(
            lambda a, part: [a] * len(jax.tree.leaves(part)), axis, argument, is_leaf=is_leaf
        )
        axes += jax.tree.leaves(wide, is_leaf=is_leaf)
    axes = [
        axis % np.ndim(leaf) if isinstance(axis, int) else axis
        for axis, leaf in zip(axes, leaves, strict=True)
    ]
    paths, _ = jax.tree_util.tree_flatten_with_path(tuple(arguments))
    names = tuple(f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}" for path, _ in paths)

    def traced(size: int, times: int) -> tuple[ClosedJaxpr, Any]:
        grown = [_grown(leaf, axis, times) for leaf, axis in zip(leaves, axes, strict=True)]
        # JAX keeps the traces of a function; what it closes over may be another thing by now.
        fresh = lambda *args: body(*args)
        make = jax.make_jaxpr(fresh, axis_env=[(axis_name, size)], return_shape=True)
        jaxpr, shape = make(*jax.tree.unflatten(tree, grown))
        return jaxpr, jax.tree.structure(shape)

    local, out_tree = traced(axis_size, growth)
    try:
        alone, _ = traced(1, growth)
        global_, other_tree = traced(1, axis_size * growth)
    except Exception as error:
        why = ": ".join(filter(None, [type(error).__name__, *str(error).splitlines()[:1]]))
        line = source_locations.line_of_error(error)
        at = f" ({line})" if line else ""
        raise OtherTraceError(f"cannot be traced for the global batch{at}: {why}", local) from error
    if out_tree != other_tree:
        raise OtherTraceError("returns a different tree structure for the global batch", local)
    return Traces(local, alone, global_, tuple(axes), names, out_tree)


def _grown(leaf: Any, axis: BatchAxis, times: int) -> jax.ShapeDtypeStruct:
    shape = list(np.shape(leaf))
    if isinstance(axis, int):
        shape[axis] *= times
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf)
    weak = getattr(leaf, "weak_type", isinstance(leaf, int | float | complex | bool))
    return jax.ShapeDtypeStruct(tuple(shape), dtype, weak_type=weak)


def constants(closed: Any) -> list[Any]:
    """Returns the constants of a jaxpr, of keys their data."""
    return [as_numpy(value) for value in getattr(closed, "consts", ())]


def as_numpy(value: Any) -> Any:
    return np.asarray(jax.random.key_data(value) if is_key(value) else value)
