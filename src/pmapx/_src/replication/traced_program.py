"""Which arguments and outputs of a program are equal on all devices.

``shard_map_body`` answers that for the body of one ``shard_map``. Here the program around it is
followed: which array becomes which operand of which ``shard_map``, which of their results becomes
which output, and how each is sharded in between. A proof applies to one spec, and is dropped where
another shards the array differently. With ``check_vma=False``, JAX does not verify that outputs
with ``P()`` are equal: the replicas may differ, and so may all that is computed from them.

Of nested ``shard_map``, as of nested pmaps, the result of the inner one is unsharded to the outer
body, and outside of both it is sharded over the axes of both. Whether its shards along an inner
axis are equal is known where the inner body ends.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx._src.mesh.partition_specs import entry_axes, spec_axes
from pmapx._src.replication import jaxprs, shard_map_body, source_locations
from pmapx._src.replication.shard_map_body import Origins


class InnerSharding(NamedTuple):
    dimensions: Mapping[int, tuple[Any, ...]]  # The mesh axes that shard each.
    manual: tuple[Any, ...]
    origins: Origins  # The axes along which the shards differ.


def over_both_meshes(
    eqn: JaxprEqn, index: int, origins: Origins, inner: Mapping[Var, Origins]
) -> tuple[PartitionSpec, tuple[Any, ...], Origins]:
    """Returns the spec, axes and origins of result ``index`` of a ``shard_map``.

    Includes those of each ``shard_map`` inside: ``inner`` has the origins of their results.
    """
    spec, manual = eqn.params["out_specs"][index], jaxprs.manual_axes(eqn)
    body = jaxprs.opened(eqn.params["jaxpr"])
    found = _inner_sharding(body, body.outvars[index], inner)
    if found is None:
        return spec, manual, origins
    rank = max(len(spec), *(dimension + 1 for dimension in found.dimensions), 0)
    entries = [
        (*entry_axes(spec[d] if d < len(spec) else None), *found.dimensions.get(d, ()))
        for d in range(rank)
    ]
    both = PartitionSpec(
        *(axes if len(axes) > 1 else axes[0] if axes else None for axes in entries)
    )
    return both, (*manual, *found.manual), {**origins, **found.origins}


def _inner_sharding(body: Jaxpr, atom: Any, inner: Mapping[Var, Origins]) -> InnerSharding | None:
    """Follows an output back to the inner ``shard_map`` that made it, through added dimensions."""
    makers = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    dimensions: Sequence[int] = range(len(getattr(atom.aval, "shape", ())))
    while not isinstance(atom, Literal) and atom in makers:
        eqn = makers[atom]
        if eqn.primitive.name == "shard_map":
            return _of_inner(eqn, atom, dimensions, inner)
        if eqn.primitive.name != "broadcast_in_dim":
            return None
        to = eqn.params["broadcast_dimensions"]
        operand = eqn.invars[0]
        shape, made = getattr(operand.aval, "shape", ()), getattr(atom.aval, "shape", ())
        if any(shape[k] != made[d] for k, d in enumerate(to)):
            return None  # Values are repeated.
        dimensions, atom = [dimensions[d] for d in to], operand
    return None


def _of_inner(
    eqn: JaxprEqn, var: Var, dimensions: Sequence[int], inner: Mapping[Var, Origins]
) -> InnerSharding | None:
    if var not in inner:
        return None
    index = list(eqn.outvars).index(var)
    manual = jaxprs.manual_axes(eqn)
    own = {axis: since for axis, since in inner[var].items() if axis in manual}
    spec, names, origins = over_both_meshes(eqn, index, own, inner)
    sharded = {
        dimensions[k]: entry_axes(entry) for k, entry in enumerate(spec) if entry is not None
    }
    return InnerSharding(sharded, names, origins)


@dataclasses.dataclass(frozen=True)
class Argument:
    """What is known of an argument before the program runs."""

    name: str  # Describes what varies because of it.
    sharding: Sharding | None = None  # None: the one that the program wants.
    differs: frozenset[Any] | None = None  # Mesh axes along which shards differ; None: the spec's.
    varies: frozenset[Any] | None = None  # In a ``shard_map`` whose specs do not show them.


@dataclasses.dataclass(frozen=True)
class Held:
    """What is known of an array outside of any ``shard_map``."""

    mesh: Any = None
    spec: PartitionSpec | None = None  # None: the compiler chooses it.
    # The mesh axes along which its shards differ under that spec; without a spec, those along which
    # its replicas differ. Each with the place where that begins.
    axes: Origins = dataclasses.field(default_factory=dict)
    # The same for what it was computed from, outside of any ``shard_map``.
    made_of: Origins = dataclasses.field(default_factory=dict)
    manual: tuple[Any, ...] = ()  # Of the ``shard_map`` that returned it; ``axes`` has no others.
    made_at: str | None = None  # The line that made it, as ``train.py:88``.
    argument: int | None = None  # The argument that it is, unchanged.
    label: str | None = None  # The one argument that it was computed from.

    @property
    def unequal_replicas(self) -> Origins:
        """The axes along which replicas differ, though the spec declares them equal."""
        sharded = () if self.spec is None else spec_axes(self.spec)
        return {axis: since for axis, since in self.axes.items() if axis not in sharded}

    def axes_under(self, mesh: Any, spec: PartitionSpec, since: str | None = None) -> Origins:
        """The axes along which its shards differ under another spec.

        >>> stacked = Held(spec=PartitionSpec("i"), manual=("i",))
        >>> stacked.axes_under(None, PartitionSpec("i", None)), stacked.axes_under(
        ...     None, PartitionSpec(None, "i"), "w")
        ({}, {'i': 'w'})
        """
        named = spec_axes(spec)
        finer = None
        if self.spec is not None and _same_mesh(self.mesh, mesh):
            finer = _finer(self.spec, spec)
        if finer is not None and not set(finer) & set(self.manual):
            return {**self.axes, **dict.fromkeys(finer, since or self.label or "")}
        began = next(iter(self.unequal_replicas.values()), None)
        if began is not None:  # Which replica is used where is the compiler's choice.
            return dict.fromkeys((*named, *(() if mesh is None else mesh.axis_names)), began)
        began = since or self.label or next(iter(self.axes.values()), "")
        return {axis: self.axes.get(axis, began) for axis in named}


@dataclasses.dataclass(frozen=True)
class Variations:
    """What is known of a program's outputs and arguments."""

    outputs: tuple[Held, ...]
    inputs: tuple[frozenset[Any], ...]  # The mesh axes over which a ``shard_map`` shards each.


def of_program(jaxpr: ClosedJaxpr, arguments: Sequence[Argument]) -> Variations:
    """Finds which outputs of a jitted program, with any ``shard_map`` in it, are replicated.

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
    """Returns the arguments that stay equal on all devices if all of these start equal.

    ``carried`` has pairs of an argument and the output that takes its place in the next call.
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
    """Returns the arguments, some of them declared equal on all devices."""
    return [
        dataclasses.replace(argument, differs=frozenset()) if index in equal else argument
        for index, argument in enumerate(arguments)
    ]


def shard_maps(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Returns every ``shard_map`` of a program, outer ones first."""
    return (eqn for eqn in jaxprs.equations(jaxpr) if eqn.primitive.name == "shard_map")


def _held(index: int, argument: Argument) -> Held:
    start = Held(argument=index, label=argument.name)
    sharding = argument.sharding
    if not isinstance(sharding, NamedSharding):
        return start
    differs = argument.differs
    if differs is None:
        differs = frozenset(spec_axes(sharding.spec))
    axes = {axis: argument.name for axis in sharding.mesh.axis_names if axis in differs}
    return dataclasses.replace(start, mesh=sharding.mesh, spec=sharding.spec, axes=axes)


class _Walk:
    """A walk through a program, outside of its ``shard_map``."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = arguments
        self.inputs: list[set[Any]] = [set() for _ in arguments]  # The axes that specs name.
        self.given: list[Held] = []  # What each ``shard_map`` on the way returned.

    def jaxpr(self, jaxpr: Jaxpr, start: Sequence[Held]) -> list[Held]:
        return jaxprs.interpret(jaxpr, start, lambda atom: Held(), self.equation)

    def equation(self, eqn: JaxprEqn, operands: Sequence[Held]) -> list[Held]:
        callee = shard_map_body.callee(eqn)
        if eqn.primitive.name == "shard_map":
            return self.shard_map(eqn, operands)
        if callee is not None:
            return self.jaxpr(jaxprs.opened(callee), operands)
        return [self.computed(eqn, operands)] * len(eqn.outvars)

    def computed(self, eqn: JaxprEqn, operands: Sequence[Held]) -> Held:
        """Returns what is known of a value that the compiler computes, and shards as it chooses.

        Equal shards are not followed: a sum over their axis has none.
        """
        is_added = source_locations.is_added(eqn)
        if is_added and len(operands) == 1 and operands[0].argument is not None:
            # Such as a reshape of an argument, which a shard_map takes as the argument itself.
            return dataclasses.replace(operands[0], mesh=None, spec=None, axes={})
        axes: Origins = {}
        if shard_map_body.reaches_beyond(eqn):
            axes = {shard_map_body.UNKNOWN_AXIS: source_locations.place(eqn)}
        else:
            unequal = _unequal_in([*operands, *self.inside_of(eqn, operands)])
            axes = {} if unequal is None else unequal.axes
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
        """Returns what the ``shard_map`` of a loop or a branch may return for any operands."""
        bodies = list(jaxprs.subjaxprs(eqn.params))
        start = _unequal_in(operands) or Held()
        while True:
            walk = _Walk(())
            for body in bodies:
                walk.given += walk.jaxpr(body, [start] * len(body.invars))
            unequal = _unequal_in(walk.given)
            if start.axes or unequal is None:
                return walk.given
            start = unequal

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
            spec, axes, varies = over_both_meshes(eqn, index, origins, inner)
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
        """Returns the axes along which an operand varies inside a body."""
        label = operand.label or what
        found = dict(operand.axes_under(eqn.params["mesh"], spec, label))
        found.update(dict.fromkeys((a for a in axes if a not in spec_axes(spec)), label))
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


def _unequal_in(several: Sequence[Held]) -> Held | None:
    """Returns one of several arrays whose replicas differ, if there is one."""
    for held in several:
        if held.unequal_replicas:
            since = next(iter(held.unequal_replicas.values()))
            return Held(axes={shard_map_body.UNKNOWN_AXIS: since})
    return None


def _same_mesh(one: Any, other: Any) -> bool:
    """Whether two meshes are the same; an abstract mesh is compared by names and sizes."""
    if one is None or other is None:
        return one is other
    if isinstance(one, Mesh) and isinstance(other, Mesh):
        return one == other
    return dict(one.shape) == dict(other.shape) and one.axis_names == other.axis_names


def _finer(coarse: PartitionSpec, spec: PartitionSpec) -> tuple[Any, ...] | None:
    """Returns the axes that a spec adds to another; None if it is not a refinement of that.

    >>> _finer(PartitionSpec("i"), PartitionSpec(("i", "k"), "j"))
    ('k', 'j')
    >>> _finer(PartitionSpec("i"), PartitionSpec()) is None
    True
    """
    entries = itertools.zip_longest(coarse, spec)
    pairs = [(entry_axes(rough), entry_axes(fine)) for rough, fine in entries]
    if any(fine[: len(rough)] != rough for rough, fine in pairs):
        return None
    return tuple(axis for rough, fine in pairs for axis in fine[len(rough) :])
