"""The ``in_shardings`` and ``out_shardings`` of a jitted function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding


class Asked(NamedTuple):
    """The sharding of each argument and output; None if the options of ``jit`` give none."""

    arguments: list[NamedSharding | None]
    outputs: list[NamedSharding | None]


def shardings_asked_for(
    jitted: Any, args: Sequence[Any], dynamic: Sequence[int], kwargs: dict[str, Any]
) -> Asked:
    """Reads ``in_shardings`` and ``out_shardings`` off a jitted function, leaf by leaf.

    >>> import numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> sharded = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
    >>> f = jax.jit(lambda x, y: (x, y), in_shardings=(sharded, None))
    >>> asked = shardings_asked_for(f, (np.ones(8), np.ones(8)), (0, 1), {})
    >>> asked.arguments[0].spec == P("i"), asked.arguments[1]
    (True, None)
    """

    def call(values: Sequence[Any], named: dict[str, Any]) -> Any:
        positional = list(args)
        for position, value in zip(dynamic, values, strict=True):
            positional[position] = value
        return jitted(*positional, **named)

    taken = [args[position] for position in dynamic]
    closed = jax.make_jaxpr(call)(taken, kwargs)
    count = len(jax.tree.leaves((taken, kwargs)))
    # The equation that calls it gives all outputs of the jaxpr.
    eqn = next((eqn for eqn in reversed(closed.jaxpr.eqns) if "in_shardings" in eqn.params), None)
    if eqn is None or list(eqn.outvars) != list(closed.jaxpr.outvars):
        return Asked([None] * count, [None] * len(closed.jaxpr.outvars))
    # Constants come before the arguments in newer releases.
    given = dict(zip(eqn.invars, eqn.params["in_shardings"], strict=True))
    return Asked(
        [_named(given.get(var)) for var in closed.jaxpr.invars[-count:] if count],
        [_named(wanted) for wanted in eqn.params["out_shardings"]],
    )


def _named(sharding: Any) -> NamedSharding | None:
    return sharding if isinstance(sharding, NamedSharding) else None
