"""``out_axes=AUTO``: which outputs are equal on all devices, found while the function is traced.

A ``shard_map`` needs its ``out_specs`` as soon as its body is traced. So the function is traced to
a separate jaxpr inside the body; ``replication`` analyzes that, and the jaxpr then runs as the
body: the function is traced once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import jaxpr_as_fun

from pmapx._src.replication import shard_map_body

if TYPE_CHECKING:
    from pmapx._src.spmd.axes import MappedAxis


class Auto:
    def __repr__(self) -> str:
        return "pmapx.AUTO"

    def __reduce__(self) -> str:
        """Pickles and copies it by name, as there is only one."""
        return "AUTO"


AUTO = Auto()
"""An entry of ``out_axes``: None where the output is proven equal on all devices, 0 elsewhere.

>>> import jax, numpy as np, pmapx
>>> n = jax.device_count()
>>> f = pmapx.pmap(lambda x: (x, jax.lax.psum(x, "i")), axis_name="i", out_axes=AUTO)
>>> mapped, total = f(np.ones((n, 3)))
>>> mapped.shape == (n, 3), total.shape
(True, (3,))
"""


def is_in(out_axes: Any) -> bool:
    return any(axis is AUTO for axis in jax.tree.leaves(out_axes))


def analyzed(
    call: Callable[[Sequence[Any]], Any],
    check: Callable[[Any], Any],
    levels: Sequence[MappedAxis],
    leaves: Sequence[Any],
) -> tuple[Any, list[tuple[bool, ...]]]:
    """Runs a mapped body, and finds over which levels each leaf of its result is replicated.

    ``check`` raises if what the body ``call`` returned is not made of arrays.
    """
    trees = []

    def flat(*leaves: Any) -> list[Any]:
        result = call(leaves)
        check(result)
        out_leaves, tree = jax.tree.flatten(result)
        trees.append(tree)
        return out_leaves

    closed = jax.make_jaxpr(flat)(*leaves)
    declared = [
        frozenset(level.mesh_axis for level in levels if level.in_axes[index] is not None)
        for index in range(len(leaves))
    ]
    is_replicated = [
        tuple(
            not {level.mesh_axis, shard_map_body.UNKNOWN_AXIS} & variation.axes for level in levels
        )
        for variation in shard_map_body.analyze_body(closed.jaxpr, declared)
    ]
    return jax.tree.unflatten(trees[-1], jaxpr_as_fun(closed)(*leaves)), is_replicated
