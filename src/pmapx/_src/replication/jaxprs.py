"""Reads equations: the jaxprs inside them, the axis names in their parameters, their primitives."""

import functools
import numbers
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, primitives

from pmapx._src.mesh.partition_specs import spec_axes

T = TypeVar("T")
Axis = Hashable
Scope = tuple[Axis, ...]
"""The manual mesh axes that a jaxpr runs under, outermost first."""


def axis_names(value: Any, scope: Scope) -> tuple[Axis, ...]:
    """The axis names in a parameter: one, or several among which integers are array dimensions."""
    # A tuple may be the name of one axis.
    are_several = isinstance(value, tuple | list | set | frozenset) and value not in scope
    return tuple(
        name
        for name in (value if are_several else (value,))
        if isinstance(name, Hashable) and not isinstance(name, numbers.Integral | None)
    )


def manual_axes(eqn: JaxprEqn) -> Scope:
    """The axes that a `shard_map` takes from the compiler, in the mesh's order."""
    mesh_axes = eqn.params["mesh"].axis_names
    manual = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", mesh_axes))
    return tuple(axis for axis in mesh_axes if axis in manual)


def in_axes(eqn: JaxprEqn) -> list[Scope]:
    """For each operand of a `shard_map`, the axes over which the body's view of it varies."""
    manual = manual_axes(eqn)
    specs = eqn.params.get("in_specs")
    if specs is None:
        return [manual] * len(eqn.invars)
    # An unreduced axis is one over which every device holds its own summand.
    return [
        tuple(a for a in manual if a in spec_axes(s) or a in getattr(s, "unreduced", ()))
        for s in specs
    ]


def axes_in_types(jaxpr: Jaxpr) -> Scope:
    """The manual axes of the mesh that the types of arrays in a `shard_map` body carry."""
    shardings = (getattr(v.aval, "sharding", None) for v in [*jaxpr.invars, *jaxpr.outvars])
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    axes = (axis for mesh in meshes for axis in getattr(mesh, "manual_axes", ()))
    return tuple(dict.fromkeys(axes))


def scan_counts(eqn: JaxprEqn) -> tuple[int, int] | None:
    """How many operands of a `scan` are constants and carried; None: some have no shape."""
    # Releases differ in how they mark the operands that are carried. The types show it: an operand
    # that is scanned over and a result that is stacked have one dimension more than in the body.
    body = opened(eqn.params["jaxpr"])
    xs = _count_of_other_rank(eqn.invars, body.invars)
    ys = _count_of_other_rank(eqn.outvars, body.outvars)
    if xs is None or ys is None:
        return None
    num_carry = len(body.outvars) - ys
    return len(eqn.invars) - xs - num_carry, num_carry


def _count_of_other_rank(outside: Sequence[Any], inside: Sequence[Any]) -> int | None:
    """How many variables of a loop have another rank in its body; None: some have no shape."""
    pairs = [(a.aval, b.aval) for a, b in zip(outside, inside, strict=True)]
    if not all(hasattr(aval, "shape") for pair in pairs for aval in pair):
        return None
    return sum(len(a.shape) != len(b.shape) for a, b in pairs)


def interpret(
    jaxpr: Jaxpr,
    inputs: Sequence[T],
    constant: Callable[[Any], T],
    apply: Callable[[JaxprEqn, list[T]], Sequence[T]],
) -> list[T]:
    """Follows values through a jaxpr: ``apply`` takes those of an equation's operands."""
    known: dict[Var, T] = {var: constant(var) for var in jaxpr.constvars}
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> T:
        return constant(atom) if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        results = apply(eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def opened(jaxpr: Jaxpr | ClosedJaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a jaxpr, each before those of the jaxprs inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in subjaxprs(eqn.params):
            yield from equations(inner)


def subjaxprs(value: Any) -> Iterator[Jaxpr]:
    """The jaxprs in the parameters of an equation, those in containers among them."""
    if isinstance(value, Jaxpr | ClosedJaxpr):
        yield opened(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from subjaxprs(item)
    elif isinstance(value, dict):
        yield from subjaxprs(list(value.values()))


# Computed from operands alone, and exported by no public module in some release of JAX 0.8 to 0.12.
_UNEXPORTED = frozenset(
    ["copy", "dim_as_value", "dimension_size", "eigh_jacobi", "from_edtype", "to_edtype"]
    + ["geqp3", "geqrf", "iota_2x32_shape", "layout_constraint", "relayout", "reshard", "name"]
    + ["philox2x32", "philox4x32", "threefry4x32", "platform_index", "ragged_dot_general"]
    + ["random_clone", "random_unwrap", "random_wrap", "scaled_dot", "tie", "xla_metadata_value"]
    + ["zeros_like"]
    # Waiting for a collective returns the result of its start.
    + ["all_gather_done", "all_to_all_done", "pbroadcast_done", "ppermute_done", "psum_done"]
    + ["reduce_scatter_done"]
)


def is_jaxs_own(primitive: Primitive, names: Collection[str] = ()) -> bool:
    """Whether JAX defines a primitive; ``names`` are of more that no public module exports.

    JAX's own are known to compute from their operands alone. One that a user or a library defines
    may do anything on a device: read its index, call the host, communicate. A proof must not take
    it for arithmetic.

    >>> is_jaxs_own(primitives.sin_p), is_jaxs_own(Primitive("sin"))
    (True, False)
    """
    exported = _exported()
    if primitive.name in exported:  # By identity: a user's primitive may have any name.
        return exported[primitive.name] is primitive
    return primitive.name in _UNEXPORTED or primitive.name in names


@functools.cache
def _exported() -> dict[str, Primitive]:
    modules = (primitives, jax.lax, jax.lax.linalg)
    values = (value for module in modules for value in vars(module).values())
    return {value.name: value for value in values if isinstance(value, Primitive)}
