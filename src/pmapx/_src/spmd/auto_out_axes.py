"""``out_axes=AUTO``: which outputs are equal on all devices, found while the function is traced.

The specs of a ``shard_map``'s outputs have to be there when its body has been traced. So the body
is traced to a jaxpr of its own first; the analysis of ``audit.replication`` reads that, and the
jaxpr, not the function, runs as the body: the function is traced once.
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
    """The type of ``AUTO``."""

    def __repr__(self) -> str:
        """Returns its public name."""
        return "pmapx.AUTO"

    def __reduce__(self) -> str:
        """Keeps it the one that there is, also when pickled and copied."""
        return "AUTO"


AUTO = Auto()
"""An entry of ``out_axes``: None where the output is proven equal on all devices, 0 elsewhere.

>>> import jax, numpy as np, pmapx
>>> n = jax.device_count()
>>> f = pmapx.pmap(lambda x: (x, jax.lax.psum(x, "i")), axis_name="i", out_axes=AUTO)
>>> rows, total = f(np.ones((n, 3)))
>>> rows.shape == (n, 3), total.shape
(True, (3,))
"""


def is_in(out_axes: Any) -> bool:
    """Says whether any entry of ``out_axes`` is ``AUTO``."""
    return any(axis is AUTO for axis in jax.tree.leaves(out_axes))


def traced_once(
    call: Callable[[Sequence[Any]], Any],
    check: Callable[[Any], Any],
    levels: Sequence[MappedAxis],
    rows: Sequence[Any],
) -> tuple[Any, list[tuple[bool, ...]] | None]:
    """Runs a function for one element, and says which of its outputs are replicated over what.

    Args:
      call: the function, of flat leaves.
      check: raises if what the function returned is not made of arrays.
      levels: the axes that it is mapped over.
      rows: its leaves.

    Returns:
      Its result, and for each leaf of that whether it is equal over each level; None in place of
      those when no level asks.
    """
    if not any(is_in(level.out_axes) for level in levels):
        return call(rows), None
    trees = []

    def flat(*rows: Any) -> list[Any]:
        result = call(rows)
        check(result)
        leaves, tree = jax.tree.flatten(result)
        trees.append(tree)
        return leaves

    closed = jax.make_jaxpr(flat)(*rows)
    declared = [
        frozenset(level.mesh_axis for level in levels if level.in_axes[index] is not None)
        for index in range(len(rows))
    ]
    found = shard_map_body.analyze_body(closed.jaxpr, declared)
    is_replicated = [
        tuple(
            not {level.mesh_axis, shard_map_body.UNKNOWN_AXIS} & variation.axes for level in levels
        )
        for variation in found
    ]
    return jax.tree.unflatten(trees[-1], jaxpr_as_fun(closed)(*rows)), is_replicated
