"""Which arguments and outputs of a whole program are equal on all devices.

``replication`` answers that for the body of one ``shard_map``. Here the program around it is
followed: which argument becomes which operand of which ``shard_map``, and which of their results
becomes which output.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from pmapx.audit import replication


@dataclasses.dataclass(frozen=True)
class Held:
    """What is known of an array between one ``shard_map`` and the next.

    Attributes:
      spec: how it is laid out, when a ``shard_map`` gave it; None for an argument.
      axes: the mesh axes along which what devices hold of it differs.
      since: where that began.
      argument: the argument that it is, unchanged.
    """

    spec: PartitionSpec | None
    axes: frozenset[Any]
    since: str | None = None
    argument: int | None = None


@dataclasses.dataclass(frozen=True)
class Variations:
    """What the program makes of its outputs.

    Attributes:
      outputs: for each output, what is known of it; None where only its sharding tells.
      inputs: for each argument, the mesh axes that specs of a ``shard_map`` split it over.
    """

    outputs: tuple[Held | None, ...]
    inputs: tuple[frozenset[Any], ...]


def of_program(
    jaxpr: ClosedJaxpr,
    equal: Collection[int] = (),
    names: Sequence[str] = (),
    varying: Sequence[frozenset[Any]] | None = None,
) -> Variations:
    """Says which outputs of a jitted program are equal on all devices.

    Args:
      jaxpr: of the program, with any number of ``shard_map`` in it.
      equal: the arguments (counted over flat leaves) of which all devices hold equal parts.
      names: what the caller calls the arguments, for what varies since one of them.
      varying: the mesh axes that each argument varies over, where specs do not tell.

    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(np.array(jax.devices()), ("i",))
    >>> def body(w, x):
    ...     return w - jax.lax.pmean(x, "i"), x
    >>> f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    >>> n = jax.device_count()
    >>> found = of_program(jax.make_jaxpr(f)(np.ones(n), np.ones(n)), equal=[0], names=["w", "x"])
    >>> [held.since for held in found.outputs]
    [None, 'x']
    """
    top = jaxpr.jaxpr
    inputs: list[set[Any]] = [set() for _ in top.invars]
    walk = _Walk(inputs, frozenset(equal), list(names), varying)
    start = [Held(None, frozenset(), None, index) for index in range(len(top.invars))]
    outputs = walk.jaxpr(top, start)
    return Variations(
        tuple(None if held is None or held.spec is None else held for held in outputs),
        tuple(frozenset(axes) for axes in inputs),
    )


def kept_equal(
    jaxpr: ClosedJaxpr,
    carried: Sequence[tuple[int, int]],
    varying: Sequence[frozenset[Any]] | None = None,
) -> frozenset[int]:
    """Returns the arguments that stay equal on all devices if all of these start so.

    Args:
      jaxpr: of the program.
      carried: pairs of an argument and the output that takes its place in the next call.
      varying: the mesh axes that each argument varies over, where specs do not tell.
    """
    kept = {argument for argument, _ in carried}
    while True:
        outputs = of_program(jaxpr, kept, varying=varying).outputs
        lost = {
            argument
            for argument, output in carried
            if argument in kept and ((held := outputs[output]) is None or held.axes)
        }
        if not lost:
            return frozenset(kept)
        kept -= lost


def shard_maps(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yields every ``shard_map`` of a program, those inside of others after them."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn
        for inner in _jaxprs_in(eqn.params):
            yield from shard_maps(inner)


@dataclasses.dataclass
class _Walk:
    inputs: list[set[Any]]
    equal: frozenset[int]
    names: list[str]
    varying: Sequence[frozenset[Any]] | None

    def jaxpr(self, jaxpr: Jaxpr, start: Sequence[Held | None]) -> list[Held | None]:
        known: dict[Var, Held | None] = dict(zip(jaxpr.invars, start, strict=True))

        def read(atom: Any) -> Held | None:
            return None if isinstance(atom, Literal) else known.get(atom)

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            if eqn.primitive.name == "shard_map":
                results = self.shard_map(eqn, operands)
            else:
                results = self.other(eqn, operands)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def other(self, eqn: JaxprEqn, operands: Sequence[Held | None]) -> list[Held | None]:
        for inner in _jaxprs_in(eqn.params):
            same = len(inner.invars) == len(operands) and len(inner.outvars) == len(eqn.outvars)
            if same and eqn.primitive.name not in ("scan", "while", "cond"):
                return self.jaxpr(inner, operands)
        # What is computed between shard_maps is a new array, of which its sharding tells.
        return [None] * len(eqn.outvars)

    def shard_map(self, eqn: JaxprEqn, operands: Sequence[Held | None]) -> list[Held | None]:
        manual = manual_axes(eqn)
        in_specs = eqn.params["in_specs"]
        body = eqn.params["jaxpr"]
        body = body.jaxpr if isinstance(body, ClosedJaxpr) else body
        inside = [
            self.axes_inside(held, spec, manual)
            for held, spec in zip(operands, in_specs, strict=True)
        ]
        variations = replication.analyze_body(body, inside)
        results: list[Held | None] = []
        for spec, found in zip(eqn.params["out_specs"], variations, strict=True):
            axes = frozenset(axis for axis in found.axes if axis in manual)
            since = self.since(found.since, operands) if axes else None
            results.append(Held(spec, axes, since))
        return results

    def axes_inside(
        self, held: Held | None, spec: PartitionSpec, manual: Sequence[Any]
    ) -> frozenset[Any]:
        named = frozenset(axis for axis in axes_of_spec(spec) if axis in manual)
        if held is None:
            return named
        if held.argument is not None:
            index = held.argument
            self.inputs[index] |= named
            if self.varying is not None:
                named = self.varying[index]
            return frozenset() if index in self.equal else named
        return held.axes if held.spec == spec or not named else named | held.axes

    def since(self, since: str | None, operands: Sequence[Held | None]) -> str | None:
        number = re.fullmatch(r"argument (\d+)", since or "")
        if number is None:
            return since
        held = operands[int(number[1])]
        if held is None:
            return f"operand {number[1]} of the shard_map"
        if held.argument is None:
            return held.since
        index = held.argument
        return self.names[index] if index < len(self.names) else f"argument {index}"


def manual_axes(eqn: JaxprEqn) -> tuple[Any, ...]:
    """Returns the mesh axes that a ``shard_map`` makes manual."""
    names = eqn.params["mesh"].axis_names
    manual = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", names))
    return tuple(axis for axis in names if axis in manual)


def axes_of_spec(spec: PartitionSpec) -> tuple[Any, ...]:
    """Returns the mesh axes that a spec names.

    >>> axes_of_spec(PartitionSpec(("a", "b"), None, "c"))
    ('a', 'b', 'c')
    """
    return tuple(axis for entry in spec for axis in entry_axes(entry))


def entry_axes(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes that one entry of a spec names."""
    if entry is None or not isinstance(entry, str | tuple):
        return ()  # Unconstrained.
    return entry if isinstance(entry, tuple) else (entry,)


def _jaxprs_in(params: Any) -> Iterator[Jaxpr]:
    for value in params.values() if isinstance(params, dict) else params:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _jaxprs_in(value)
