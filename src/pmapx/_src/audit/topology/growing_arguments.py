"""Which arguments of a program grow with the number of devices: the batch, and not the state.

The exponents that the jaxpr decides (``dimension_exponents``) come first; then the user's
``scale``, and how an argument is used.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr

from pmapx._src import errors
from pmapx._src.audit.topology.dimension_exponents import Dimension, Walk
from pmapx._src.pages.formatting import is_part, parts

Scale = Mapping[str, int | None]
"""By the name of an argument, or of a part of it, the dimension that grows; None: it stays."""


@dataclasses.dataclass(frozen=True)
class Given:
    """An argument's leaf: its global shape, and the exponent of each dimension; None: unknown."""

    path: str
    shape: tuple[int, ...]
    exponents: tuple[int | None, ...]


def exponents_of(
    jaxpr: ClosedJaxpr,
    axis: Any,
    size: int | None,
    given: Sequence[Given],
    carried: Sequence[tuple[int, int]],
    scale: Scale | None = None,
) -> list[tuple[int, ...]]:
    """Returns the exponent of each dimension of each argument, by the program here.

    ``size`` is that of the axis that grows; None for a pmapped function, whose mapped axes are
    known to. ``carried`` has pairs of an argument and the output that takes its place.
    """
    given = [_as_named(leaf, scale or {}) for leaf in given]
    walk, inputs = _walked(jaxpr, axis, given, carried)
    if walk.exponents.conflicts and not scale:
        # A body may need a dimension that is not sharded to be as large as the axis.
        free = [
            dataclasses.replace(leaf, exponents=tuple(e or None for e in leaf.exponents))
            for leaf in given
        ]
        looser, their_inputs = _walked(jaxpr, axis, free, carried)
        if looser.exponents.conflicts < walk.exponents.conflicts:
            walk, inputs = looser, their_inputs
    if size is not None:
        _decide_by_use(walk, size, given, inputs, {argument for argument, _ in carried})
    return [tuple(walk.exponents.value(each) or 0 for each in leaf) for leaf in inputs]


def _walked(
    jaxpr: ClosedJaxpr, axis: Any, given: Sequence[Given], carried: Sequence[tuple[int, int]]
) -> tuple[Walk, list[list[Dimension]]]:
    """Relates the dimensions of the arguments by a walk through the program."""
    walk = Walk(axis)
    unknown, known = walk.exponents.unknown, walk.exponents.known
    inputs = [
        [unknown() if exponent is None else known(exponent) for exponent in leaf.exponents]
        for leaf in given
    ]
    constants = [[known(0)] * len(var.aval.shape) for var in jaxpr.jaxpr.invars][
        : len(jaxpr.jaxpr.invars) - len(given)
    ]
    outputs = walk.jaxpr(jaxpr.jaxpr, [*constants, *inputs])
    for argument, output in carried:
        walk.equate(inputs[argument], outputs[output])
    return walk, inputs


def _as_named(leaf: Given, scale: Scale) -> Given:
    for name, dimension in scale.items():
        if is_part(leaf.path, name) and None in leaf.exponents:
            grown = [int(k == dimension) for k in range(len(leaf.shape))]
            return dataclasses.replace(leaf, exponents=tuple(grown))
    return leaf


def check_names(scale: Scale | None, known: Sequence[str], function: str) -> None:
    """Raises an error if ``scale`` names an argument that the function does not have."""
    for name in scale or ():
        if known and parts(name)[0] not in known:
            raise errors.NoSuchArgument(function, name, known)


def _decide_by_use(
    walk: Walk,
    size: int,
    given: Sequence[Given],
    inputs: Sequence[Sequence[Dimension]],
    carried: Collection[int],
) -> None:
    """Decides what the jaxpr leaves open.

    Shards of size 1 are one for each device. State before a batch keeps its size; without a batch
    after it, what is returned in its shape along its first dimension is one itself, as the chains
    of a sampler or activations are. Parameters are sharded in unlike dimensions, as in tensor
    parallelism.
    """
    exponents = walk.exponents
    together: dict[int, list[tuple[int, int]]] = {}
    last_batch = -1
    for index, leaf in enumerate(inputs):
        for k, dimension in enumerate(leaf):
            root, _ = exponents.find(dimension)
            exponent = exponents.value(dimension)
            if given[index].exponents[k] is not None:
                continue  # It is not sharded.
            if exponent is None:
                together.setdefault(root, []).append((index, k))
            elif exponent == 1 and index not in carried:
                last_batch = index
    data = [root for root, of in together.items() if not any(index in carried for index, _ in of)]
    last_batch = max([last_batch, *(index for root in data for index, _ in together[root])])
    for members in together.values():
        states = [index in carried for index, _ in members]
        positions = {k for _, k in members}
        if any(given[index].shape[k] == size for index, k in members):
            grows = True
        elif all(states):
            grows = last_batch < members[0][0] and positions == {0}
        else:
            grows = any(states) or len(positions) == 1
        index, k = members[0]
        exponents.equate(inputs[index][k], exponents.known(int(grows)))
