"""Which arguments and outputs of a whole program are equal on all devices.

``replication`` answers that for the body of one ``shard_map``. Here the program around it is
followed: which array becomes which operand of which ``shard_map``, which of their results becomes
which output, and how each lies on the devices on its way. That rows are equal says nothing of
columns: what is known of an array's parts holds for one spec, and is dropped where another splits
it. Nobody checks that a ``shard_map`` with ``check_vma=False`` gives the same everywhere when its
``out_specs`` say so: the copies may differ, and then may all that is computed of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx._src.replication import jaxprs, nested_shard_map, shard_map_body, source_locations
from pmapx._src.replication.nested_shard_map import entry_axes
from pmapx._src.replication.shard_map_body import Origins


@dataclasses.dataclass(frozen=True)
class Argument:
    """What is known of an argument before the program runs.

    Attributes:
      name: what the caller calls it, for what varies since it.
      sharding: how it comes in; None: as the program takes it.
      differs: the mesh axes along which what devices hold of it differs; None: those of its spec.
      varies: those along which a ``shard_map`` takes it to differ, where its specs do not tell.
    """

    name: str
    sharding: Sharding | None = None
    differs: frozenset[Any] | None = None
    varies: frozenset[Any] | None = None


@dataclasses.dataclass(frozen=True)
class Held:
    """What is known of an array outside of any ``shard_map``.

    Attributes:
      mesh: the mesh that it lies on, where that is known.
      spec: how it lies there; None where only the compiler knows.
      axes: the mesh axes along which devices hold different values, by that spec; those along
        which copies of one part differ, where there is none. Each with the place where it began.
      made_of: the same of what it was computed from, outside of any ``shard_map``.
      manual: the axes of the ``shard_map`` that gave it; ``axes`` tells nothing of others.
      made_at: the line that made it, as ``train.py:88``.
      argument: the argument that it is, unchanged.
      label: the one argument that it was computed from.
    """

    mesh: Any = None
    spec: PartitionSpec | None = None
    axes: Origins = dataclasses.field(default_factory=dict)
    made_of: Origins = dataclasses.field(default_factory=dict)
    manual: tuple[Any, ...] = ()
    made_at: str | None = None
    argument: int | None = None
    label: str | None = None

    @property
    def unlike_copies(self) -> Origins:
        """The axes along which copies of one part differ: the spec says that they are the same."""
        split = () if self.spec is None else axes_of_spec(self.spec)
        return {axis: since for axis, since in self.axes.items() if axis not in split}

    def axes_under(self, mesh: Any, spec: PartitionSpec, since: str | None = None) -> Origins:
        """The axes along which devices hold different values if it lies by another spec.

        >>> stacked = Held(spec=PartitionSpec("i"), manual=("i",))
        >>> stacked.axes_under(None, PartitionSpec("i", None)), stacked.axes_under(
        ...     None, PartitionSpec(None, "i"), "w")
        ({}, {'i': 'w'})
        """
        named = axes_of_spec(spec)
        finer = None
        if self.spec is not None and _same_mesh(self.mesh, mesh):
            finer = _finer(self.spec, spec)
        if finer is not None and not set(finer) & set(self.manual):
            return {**self.axes, **dict.fromkeys(finer, since or self.label or "")}
        began = next(iter(self.unlike_copies.values()), None)
        if began is not None:  # Whose copy goes where is the compiler's choice.
            return dict.fromkeys((*named, *_axis_names(mesh)), began)
        began = since or self.label or next(iter(self.axes.values()), "")
        return {axis: self.axes.get(axis, began) for axis in named}


@dataclasses.dataclass(frozen=True)
class Variations:
    """What the program makes of its outputs.

    Attributes:
      outputs: for each output, what is known of it.
      inputs: for each argument, the mesh axes that specs of a ``shard_map`` split it over.
    """

    outputs: tuple[Held, ...]
    inputs: tuple[frozenset[Any], ...]


def of_program(jaxpr: ClosedJaxpr, arguments: Sequence[Argument]) -> Variations:
    """Says which outputs of a jitted program are equal on all devices.

    Args:
      jaxpr: of the program, with any number of ``shard_map`` in it.
      arguments: what is known of its arguments, leaf by leaf.

    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(np.array(jax.devices()), ("i",))
    >>> def body(w, x):
    ...     return w - jax.lax.pmean(x, "i"), x
    >>> f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    >>> n = jax.device_count()
    >>> equal, batch = Argument("w", differs=frozenset()), Argument("x")
    >>> found = of_program(jax.make_jaxpr(f)(np.ones(n), np.ones(n)), [equal, batch])
    >>> [dict(held.axes) for held in found.outputs]
    [{}, {'i': 'x'}]
    """
    top = jaxpr.jaxpr
    walk = _Walk(arguments)
    # Constants come before the arguments in newer releases.
    constants = [Held()] * (len(top.invars) - len(arguments))
    outputs = walk.jaxpr(top, [*constants, *map(_held, range(len(arguments)), arguments)])
    return Variations(tuple(outputs), tuple(frozenset(axes) for axes in walk.inputs))


def kept_equal(
    jaxpr: ClosedJaxpr, arguments: Sequence[Argument], carried: Sequence[tuple[int, int]]
) -> frozenset[int]:
    """Returns the arguments that stay equal on all devices if all of these start so.

    Args:
      jaxpr: of the program.
      arguments: what is known of its arguments.
      carried: pairs of an argument and the output that takes its place in the next call.
    """
    kept = {argument for argument, _ in carried}
    while True:
        outputs = of_program(jaxpr, with_equal(arguments, kept)).outputs
        lost = {
            argument
            for argument, output in carried
            if argument in kept and (outputs[output].spec is None or outputs[output].axes)
        }
        if not lost:
            return frozenset(kept)
        kept -= lost


def with_equal(arguments: Sequence[Argument], equal: Collection[int]) -> list[Argument]:
    """Returns arguments of which some are taken to come in equal on all devices."""
    return [
        dataclasses.replace(argument, differs=frozenset()) if index in equal else argument
        for index, argument in enumerate(arguments)
    ]


def shard_maps(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yields every ``shard_map`` of a program, those inside of others after them."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn
        for inner in jaxprs.subjaxprs(eqn.params):
            yield from shard_maps(inner)


def _held(index: int, argument: Argument) -> Held:
    start = Held(argument=index, label=argument.name)
    sharding = argument.sharding
    if not isinstance(sharding, NamedSharding):
        return start
    differs = argument.differs
    if differs is None:
        differs = frozenset(axes_of_spec(sharding.spec))
    axes = {axis: argument.name for axis in sharding.mesh.axis_names if axis in differs}
    return dataclasses.replace(start, mesh=sharding.mesh, spec=sharding.spec, axes=axes)


class _Walk:
    """A way through a program, outside of its ``shard_map``.

    Attributes:
      inputs: for each argument, the axes that specs split it over.
      given: what each ``shard_map`` on the way gave.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = arguments
        self.inputs: list[set[Any]] = [set() for _ in arguments]
        self.given: list[Held] = []

    def jaxpr(self, jaxpr: Jaxpr, start: Sequence[Held]) -> list[Held]:
        known: dict[Var, Held] = dict.fromkeys(jaxpr.constvars, Held())
        known.update(zip(jaxpr.invars, start, strict=True))

        def read(atom: Any) -> Held:
            return Held() if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            callee = shard_map_body.callee(eqn)
            if eqn.primitive.name == "shard_map":
                results = self.shard_map(eqn, operands)
            elif callee is not None:
                results = self.jaxpr(callee, operands)
            else:
                results = [self.computed(eqn, operands)] * len(eqn.outvars)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def computed(self, eqn: JaxprEqn, operands: Sequence[Held]) -> Held:
        """Returns what is known of what the compiler computes, and lays out as it likes.

        Rows that are equal are not followed: a sum over them has none.
        """
        is_added = source_locations.is_added(eqn)
        if is_added and len(operands) == 1 and operands[0].argument is not None:
            # A reshape, say, of an argument: a shard_map takes the one as it takes the other.
            return dataclasses.replace(operands[0], mesh=None, spec=None, axes={})
        axes: Origins = {}
        if shard_map_body.reaches_beyond(eqn):
            axes = {shard_map_body.UNKNOWN_AXIS: source_locations.place(eqn)}
        else:
            unlike = _unlike_in([*operands, *self.inside_of(eqn, operands)])
            axes = {} if unlike is None else unlike.axes
        labels = {each.label for each in operands if each.label}
        made_at = next((each.made_at for each in operands if each.made_at), None)
        made_of = (o for each in operands if each.argument is None
                   for o in (each.axes, each.made_of))  # fmt: skip
        return Held(
            axes=axes,
            made_of=shard_map_body.join(made_of),
            made_at=made_at if is_added else source_locations.line_of(eqn) or made_at,
            label=labels.pop() if len(labels) == 1 else None,
        )

    def inside_of(self, eqn: JaxprEqn, operands: Sequence[Held]) -> list[Held]:
        """Returns what the ``shard_map`` of a loop or a branch may give, whatever they take."""
        bodies = list(jaxprs.subjaxprs(eqn.params))
        start = _unlike_in(operands) or Held()
        while True:
            walk = _Walk(())
            for body in bodies:
                walk.given += walk.jaxpr(body, [start] * len(body.invars))
            unlike = _unlike_in(walk.given)
            if start.axes or unlike is None:
                return walk.given
            start = unlike

    def shard_map(self, eqn: JaxprEqn, operands: Sequence[Held]) -> list[Held]:
        body, manual = jaxprs.opened(eqn.params["jaxpr"]), jaxprs.manual_axes(eqn)
        in_specs = eqn.params.get("in_specs") or [PartitionSpec(manual)] * len(operands)
        inputs = [
            self.taken(eqn, operand, spec, axes, f"operand {k} of the shard_map")
            for k, (operand, spec, axes) in enumerate(
                zip(operands, in_specs, jaxprs.in_axes(eqn), strict=True)
            )
        ]
        found, inner = shard_map_body.with_inner(manual, body, inputs)
        results = []
        for index, (origins, line) in enumerate(
            zip(found, source_locations.lines_behind(body), strict=True)
        ):
            spec, axes, varies = nested_shard_map.split_by_both(eqn, index, origins, inner)
            results.append(Held(eqn.params["mesh"], spec, varies, manual=axes, made_at=line))
        self.given += results
        return results

    def taken(
        self,
        eqn: JaxprEqn,
        operand: Held,
        spec: PartitionSpec,
        axes: Sequence[Any],
        what: str,
    ) -> Origins:
        """Returns the axes along which a body's view of an operand differs."""
        label = operand.label or what
        found = dict(operand.axes_under(eqn.params["mesh"], spec, label))
        found.update(dict.fromkeys((a for a in axes if a not in axes_of_spec(spec)), label))
        if operand.argument is not None:
            self.inputs[operand.argument] |= set(axes)
            argument = self.arguments[operand.argument]
            if argument.varies is not None:
                found = dict.fromkeys(argument.varies, label)
            if argument.differs is not None and (
                argument.varies is not None or argument.sharding is None
            ):
                found = {axis: found[axis] for axis in found if axis in argument.differs}
        manual = jaxprs.manual_axes(eqn)
        return {axis: since for axis, since in found.items() if axis in manual}


def _unlike_in(several: Sequence[Held]) -> Held | None:
    """Returns an array of which copies differ, if one among several is of that kind."""
    for held in several:
        if held.unlike_copies:
            since = next(iter(held.unlike_copies.values()))
            return Held(axes={shard_map_body.UNKNOWN_AXIS: since})
    return None


def _same_mesh(one: Any, other: Any) -> bool:
    """Says whether two meshes are one; an abstract mesh is that of its names around it."""
    if one is None or other is None:
        return one is other
    if isinstance(one, Mesh) and isinstance(other, Mesh):
        return one == other
    return dict(one.shape) == dict(other.shape) and one.axis_names == other.axis_names


def _finer(coarse: PartitionSpec, spec: PartitionSpec) -> tuple[Any, ...] | None:
    """Returns the axes by which a spec splits the parts of another further; None: other parts.

    >>> _finer(PartitionSpec("i"), PartitionSpec(("i", "k"), "j"))
    ('k', 'j')
    >>> _finer(PartitionSpec("i"), PartitionSpec()) is None
    True
    """
    count = max(len(coarse), len(spec))
    pairs = [
        (entry_axes(coarse[k]) if k < len(coarse) else (), entry_axes(spec[k]) if k < len(spec)
         else ())
        for k in range(count)
    ]  # fmt: skip
    if any(fine[: len(rough)] != rough for rough, fine in pairs):
        return None
    return tuple(axis for rough, fine in pairs for axis in fine[len(rough) :])


def _axis_names(mesh: Any) -> tuple[Any, ...]:
    return () if mesh is None else tuple(mesh.axis_names)


def axes_of_spec(spec: PartitionSpec) -> tuple[Any, ...]:
    """Returns the mesh axes that a spec names.

    >>> axes_of_spec(PartitionSpec(("a", "b"), None, "c"))
    ('a', 'b', 'c')
    """
    return tuple(axis for entry in spec for axis in entry_axes(entry))
