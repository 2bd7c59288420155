"""Which donated arguments a program reuses, and which arguments are state."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pmapx._src.audit.report.audit_report import Donation, Leaf
from pmapx._src.replication import jaxprs

# The last three remove and add pmap's device axis.
_COPIES = frozenset(
    {
        "copy", "copy_p", "device_put", "sharding_constraint", "optimization_barrier", "squeeze",
        "reshape", "broadcast_in_dim",
    }
)  # fmt: skip
# The parameters of an equation that runs another program once, such as a jitted one.
_CALLED = frozenset({"jaxpr", "call_jaxpr"})


def donations(
    donated: Sequence[bool], arguments: Sequence[Leaf], outputs: Sequence[Leaf]
) -> Iterator[Donation]:
    """Pairs donated arguments with outputs that can reuse their memory, in order, as JAX does.

    >>> x = Leaf("x", (8, 4), "float32", (1, 4), (("i",), ()), 16)
    >>> y = Leaf("out", (8,), "float32", (1,), (("i",),), 4)
    >>> [found.reason for found in donations([True], [x], [y])]
    ['no output has its type, float32[8,4]']
    """
    free = Counter((leaf.dtype, leaf.shard_shape) for leaf in outputs)
    made = frozenset(free)
    for is_donated, leaf in zip(donated, arguments, strict=True):
        if not is_donated:
            continue
        wanted = (leaf.dtype, leaf.shard_shape)
        if free[wanted] > 0:
            free[wanted] -= 1
            reason = None if leaf.moved is None else f"a copy of it is reused: {leaf.moved}"
            yield Donation(leaf.path, leaf.bytes_a_device, True, reason)
        else:
            yield Donation(leaf.path, leaf.bytes_a_device, False, _reason(leaf, outputs, made))


def _reason(leaf: Leaf, outputs: Sequence[Leaf], made: frozenset[Any]) -> str:
    if (leaf.dtype, leaf.shard_shape) in made:
        return f"every output of its type, {leaf.type}, reuses another argument"
    same_shape = next((out for out in outputs if out.shape == leaf.shape), None)
    if same_shape is None:
        return f"no output has its type, {leaf.type}"
    if same_shape.dtype != leaf.dtype:
        return f"the output of its shape, {same_shape.path}, is {same_shape.dtype}"
    return f"the output of its type, {same_shape.path}, has {same_shape.spec}, not {leaf.spec}"


def carried(arguments: Any, result: Any) -> list[tuple[int, int]]:
    """Pairs the leaves of arguments with the outputs that can replace them in the next call.

    An argument is carried if a part of the result has its structure, shapes and dtypes.

    >>> import numpy as np
    >>> state, batch = {"w": np.ones(2)}, np.ones(3)
    >>> carried(((state, batch), {}), ({"w": np.ones(2)}, np.ones(())))
    [(0, 0)]
    """
    args, kwargs = arguments
    parts = list(_parts(result, 0))
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    starts: list[tuple[int, Any, list[Any]]] = []
    start = 0
    for argument in [*args, *(kwargs[key] for key in sorted(kwargs))]:
        leaves = jax.tree.leaves(argument)
        starts.append((start, argument, leaves))
        start += len(leaves)
    # State is matched before a batch that has the shape of one of its leaves.
    for start, argument, leaves in sorted(starts, key=lambda each: -len(each[2])):
        for part, first in parts if leaves else ():
            is_free = taken.isdisjoint(range(first, first + len(leaves)))
            if is_free and _structure(part) == _structure(argument):
                ends = jax.tree.leaves(part)
                if all(map(_same_type, leaves, ends)):
                    pairs += [(start + k, first + k) for k in range(len(leaves))]
                    taken.update(range(first, first + len(leaves)))
                    break
    return sorted(pairs)


def only_copies(jaxpr: Any) -> bool:
    """Returns whether a program returns its arguments as they are, or copies of them.

    >>> import jax.numpy as jnp
    >>> [only_copies(jax.make_jaxpr(f)(1.0).jaxpr) for f in (jnp.copy, jnp.sin)]
    [True, False]
    """
    return all(
        eqn.primitive.name in _COPIES or not _CALLED.isdisjoint(eqn.params)
        for eqn in jaxprs.equations(jaxpr)
    )


def _parts(tree: Any, first: int, depth: int = 2) -> Iterator[tuple[Any, int]]:
    """Yields a tree and its parts, each with the index of its first leaf."""
    yield tree, first
    children = _structure(tree).children()
    if depth and children:
        leaves = jax.tree.leaves(tree)
        for child in children:
            part = jax.tree.unflatten(child, leaves[: child.num_leaves])
            yield from _parts(part, first, depth - 1)
            leaves, first = leaves[child.num_leaves :], first + child.num_leaves


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def _same_type(a: Any, b: Any) -> bool:
    one, other = _aval(a), _aval(b)
    shape, dtype = getattr(one, "shape", ()), getattr(one, "dtype", None)
    return tuple(shape) == tuple(other.shape) and (dtype is None or str(dtype) == str(other.dtype))


def _aval(x: Any) -> Any:
    """Returns an array of the host with the dtype that JAX gives it: float32 for float64."""
    return jax.typeof(x) if isinstance(x, np.ndarray) else x
