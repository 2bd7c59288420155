"""Collectives over an axis of ``jax.vmap``, with the checks of those over devices.

``jax.vmap`` refuses ``axis_index_groups``, a partial ``ppermute``, and ``pbroadcast``. They are
rewritten in the function's jaxpr, also in the bodies of loops, branches, jits and remats and in
custom derivative rules; all other equations stay as they are. It accepts some mistakes, as batching
rules do not check their operands: the jaxpr is traced with the axis unbatched, so that JAX checks
shapes as it does over devices, and what JAX leaves to lowering is checked here.

The body of a loop takes no new array constants, so the rules make none: what differs by index comes
from a ``ppermute`` of the axis index, whose pairs are part of the equation.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import linear_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType

from pmapx._src.mesh.trace_context import is_checking_nans
from pmapx._src.trees.checked_leaves import is_key


def supported(fun: Callable[..., Any], axis_name: Hashable, axis_size: int) -> Callable[..., Any]:
    """Returns ``fun`` with its collectives over ``axis_name`` checked, for use in ``jax.vmap``.

    The result is to be mapped with ``jax.vmap`` over an axis of that name and size. Collectives
    over several axes at once are left as they are.

    >>> import jax, jax.numpy as jnp
    >>> pairs = lambda x: jax.lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])
    >>> jax.vmap(supported(pairs, "i", 4), axis_name="i")(jnp.arange(4))
    Array([1, 1, 5, 5], dtype=int32)
    """
    return functools.partial(_Rewriting(axis_name, axis_size).call, fun)


class _Collective:
    """One equation's collective, as one index of the axis runs it."""

    def __init__(self, axis_name: Hashable, axis_size: int, params: Mapping[str, Any]) -> None:
        self.axis_name = axis_name
        self.axis_size = axis_size
        self.params = params
        groups = params.get("axis_index_groups")
        self.groups: Sequence[Sequence[int]] = [range(axis_size)] if groups is None else groups
        self.group_after_group = list(itertools.chain.from_iterable(self.groups))
        if sorted(self.group_after_group) != list(range(axis_size)):
            raise ValueError(
                f"axis_index_groups must cover the {axis_size} indices of the axis "
                f"{axis_name!r} exactly once, got {self.groups}"
            )
        self.group_size = len(self.groups[0])
        self.groups_are_equal = len({len(group) for group in self.groups}) == 1

    def permuted(self, x: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
        if all(source == destination for source, destination in pairs):
            return x
        if not is_key(x):
            return lax.ppermute(x, self.axis_name, pairs)
        # JAX 0.8 cannot permute typed keys over an axis of vmap, but their data it can.
        data = lax.ppermute(jax.random.key_data(x), self.axis_name, pairs)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))

    def rank(self, order: Sequence[int]) -> jax.Array:
        """The position of this index in ``order``, a list of all of them."""
        return self.permuted(lax.axis_index(self.axis_name), list(enumerate(order)))

    def gathered(self, x: jax.Array) -> jax.Array:
        """``x`` of all indices, group after group."""
        into_order = [(index, place) for place, index in enumerate(self.group_after_group)]
        return lax.all_gather(self.permuted(x, into_order), self.axis_name)

    def by_group(self, x: jax.Array) -> jax.Array:
        if not self.groups_are_equal:
            raise ValueError(f"axis_index_groups must all be the same size, got {self.groups}")
        return self.gathered(x).reshape(len(self.groups), self.group_size, *x.shape)

    def reduced_by_group(self, reduce: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
        if self.groups_are_equal:
            return reduce(self.by_group(x), (1,))
        gathered, ends = self.gathered(x), itertools.accumulate(map(len, self.groups))
        pairs = zip(ends, self.groups, strict=True)
        return jnp.stack([reduce(gathered[end - len(group) : end], (0,)) for end, group in pairs])

    def own(self, by_group: jax.Array, part_of: int | None = None) -> jax.Array:
        """The slice for this index's group; along the axis ``part_of``, for this index alone."""
        rank = self.rank(self.group_after_group)
        starts: list[Any] = [0] * by_group.ndim
        sizes = [1, *by_group.shape[1:]]
        if self.groups_are_equal:
            starts[0] = lax.div(rank, self.group_size)
        else:
            ends = itertools.accumulate(map(len, self.groups[:-1]))
            starts[0] = sum((rank >= end).astype(rank.dtype) for end in ends)
        if part_of is not None:
            sizes[part_of] //= self.group_size
            starts[part_of] = lax.rem(rank, self.group_size) * sizes[part_of]
        return lax.squeeze(lax.dynamic_slice(by_group, starts, sizes), [0])


Rule = Callable[[_Collective, jax.Array], jax.Array]


def _all_reduce(reduce: Callable[..., jax.Array]) -> Rule:
    return lambda collective, x: collective.own(collective.reduced_by_group(reduce, x))


def _all_gather(collective: _Collective, x: jax.Array) -> jax.Array:
    members = collective.own(collective.by_group(x))
    dimension = collective.params["all_gather_dimension"]
    if collective.params["tiled"]:
        return _concatenated(members, dimension)
    return jnp.moveaxis(members, 0, dimension)


def _all_to_all(collective: _Collective, x: jax.Array) -> jax.Array:
    # The equation is always a tiled one: `lax.all_to_all` reshapes around it.
    parts = collective.own(collective.by_group(x), part_of=2 + collective.params["split_axis"])
    return _concatenated(parts, collective.params["concat_axis"])


def _reduce_scatter(collective: _Collective, x: jax.Array) -> jax.Array:
    dimension = collective.params["scatter_dimension"]
    part = collective.own(collective.reduced_by_group(lax.reduce_sum, x), part_of=1 + dimension)
    return part if collective.params["tiled"] else lax.squeeze(part, [dimension])


def _ppermute(collective: _Collective, x: jax.Array) -> jax.Array:
    size = collective.axis_size
    everyone = set(range(size))

    def from_the_front(index: int) -> int:
        # Over devices, negative indices count from the end, as those of lists do.
        return index + size if -size <= index < 0 else index

    pairs = [
        (from_the_front(source), from_the_front(destination))
        for source, destination in collective.params["perm"]
    ]
    senders, receivers = ([pair[end] for pair in pairs] for end in (0, 1))
    if len(set(senders)) < len(pairs) or len(set(receivers)) < len(pairs):
        raise ValueError(f"ppermute sources and destinations must be unique, got {pairs}")
    if not everyone.issuperset(senders + receivers):
        raise ValueError(
            f"ppermute sources and destinations must be indices of the axis "
            f"{collective.axis_name!r} of size {size}, got {pairs}"
        )
    silent, idle = sorted(everyone - {*senders}), sorted(everyone - {*receivers})
    from_someone = collective.permuted(x, [*pairs, *zip(silent, idle, strict=True)])
    if not idle:
        return from_someone
    is_receiver = collective.rank(receivers + idle) < len(receivers)
    return lax.select(is_receiver, from_someone, jnp.zeros_like(x))


def _pbroadcast(collective: _Collective, x: jax.Array) -> jax.Array:
    source = collective.params["source"]
    if source not in range(collective.axis_size):
        raise ValueError(
            f"pbroadcast source must be an index of the axis {collective.axis_name!r} of size "
            f"{collective.axis_size}, got {source}"
        )
    return lax.all_gather(x, collective.axis_name)[source]


def _concatenated(stacked: jax.Array, axis: int) -> jax.Array:
    """The arrays of the leading axis, concatenated along ``axis``."""
    shape = list(stacked.shape[1:])
    shape[axis] *= stacked.shape[0]
    return jnp.moveaxis(stacked, 0, axis).reshape(shape)


RULES: dict[str, Rule] = {
    "psum": _all_reduce(lax.reduce_sum),
    "pmax": _all_reduce(lax.reduce_max),
    "pmin": _all_reduce(lax.reduce_min),
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "ppermute": _ppermute,
    "pbroadcast": _pbroadcast,
}
"""By the name of the primitive: the rule for one of its operands."""


class _Rewriting:
    """Rewrites jaxprs for one axis; equal jaxprs become the same object."""

    def __init__(self, axis_name: Hashable, axis_size: int) -> None:
        self.axis_name = axis_name
        self.axis_size = axis_size
        self.done: dict[Any, Any] = {}

    def traced(self, fun: Callable[..., Any], *args: Any) -> Any:
        # Derivative rules are traced after `jax.vmap` has returned, when the axis is unbound.
        axis_env = [(self.axis_name, self.axis_size)]
        make = jax.make_jaxpr(fun, axis_env=axis_env, return_shape=True)
        try:
            return make(*args)
        except (ValueError, AssertionError) as error:
            if not isinstance(self.axis_name, str) or not _is_about_pcast(error):
                raise
        # `lax.pcast` needs the axis of a shard_map, of any size; it does not change values.
        size = jax.sharding.get_abstract_mesh().size or self.axis_size
        manual = AbstractMesh((size,), (self.axis_name,), axis_types=(AxisType.Manual,))
        with jax.sharding.use_abstract_mesh(manual):
            return make(*args)

    def call(self, fun: Callable[..., Any], *args: Any) -> Any:
        jaxpr, result = self.traced(fun, *args)
        rewritten = self.rewritten(jaxpr)
        if rewritten is jaxpr and is_checking_nans():
            return fun(*args)  # A jaxpr runs unchecked.
        outputs = jaxpr_as_fun(rewritten)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), outputs)

    def rewritten(self, value: Any) -> Any:
        """The value of a parameter, with the jaxprs in it rewritten; itself if none changes."""
        if type(value) is tuple:
            new = tuple(map(self.rewritten, value))
            return new if any(map(operator.is_not, new, value)) else value
        if not isinstance(value, Jaxpr | ClosedJaxpr):
            return value
        if value not in self.done:
            self.done[value] = self.jaxpr(value)
        return self.done[value]

    def jaxpr(self, jaxpr: Any) -> Any:
        if not isinstance(jaxpr, Jaxpr):  # A closed one; on JAX 0.12 the two are one class.
            inner = self.rewritten(jaxpr.jaxpr)
            return jaxpr if inner is jaxpr.jaxpr else jaxpr.replace(jaxpr=inner)
        eqns = [new for eqn in jaxpr.eqns for new in self.equations(eqn)]
        if len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, effects=jaxpr.effects | _added_effects(eqns, jaxpr.eqns))

    def equations(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        """The equations that replace ``eqn``; itself alone if ``jax.vmap`` supports it."""
        if self.is_refused(eqn):
            return self.written_out(eqn)
        params = {name: self.rewritten(value) for name, value in eqn.params.items()}
        effects = eqn.effects | _added_effects(_jaxprs(params), _jaxprs(eqn.params))
        if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            params |= self.derivative_rules(params)
        if all(params[name] is value for name, value in eqn.params.items()):
            return [eqn]
        return [eqn.replace(params=params, effects=effects)]

    def is_refused(self, eqn: JaxprEqn) -> bool:
        if eqn.primitive.name not in RULES:
            return False
        params = eqn.params
        axes = params["axes"] if "axes" in params else params["axis_name"]
        if axes not in (self.axis_name, (self.axis_name,)):
            return False
        _check_types(eqn)
        is_grouped = params.get("axis_index_groups") is not None
        # Of `pbroadcast`, JAX has a rule that fails; its rule for `ppermute` checks no pairs.
        return is_grouped or eqn.primitive.name in ("pbroadcast", "ppermute")

    def written_out(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        rule = RULES[eqn.primitive.name]
        collective = _Collective(self.axis_name, self.axis_size, eqn.params)

        def on_operands(*operands: jax.Array) -> Iterable[jax.Array]:
            for operand, result in zip(operands, eqn.outvars, strict=True):
                is_weak = getattr(result.aval, "weak_type", False)
                # Some collectives make a weakly typed operand a strongly typed one.
                x = operand if is_weak else lax.convert_element_type(operand, operand.dtype)
                written = rule(collective, x)
                # An equation needs its own result, even if it changes nothing.
                yield jnp.copy(written) if written is operand else written

        avals: list[Any] = [operand.aval for operand in eqn.invars]
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
        traced, _ = self.traced(lambda *operands: [*on_operands(*operands)], *structs)
        outside = dict(zip(traced.jaxpr.invars, eqn.invars, strict=True))
        outside |= zip(traced.jaxpr.outvars, eqn.outvars, strict=True)

        def placed(atoms: Iterable[Any]) -> list[Any]:
            return [outside.get(atom, atom) if isinstance(atom, Var) else atom for atom in atoms]

        origin = {"source_info": eqn.source_info, "ctx": eqn.ctx}
        return [
            new.replace(invars=placed(new.invars), outvars=placed(new.outvars), **origin)
            for new in traced.jaxpr.eqns
        ]

    def derivative_rules(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The rules of a custom derivative, to be rewritten when JAX asks for them."""

        def jaxpr_maker(thunk: Any) -> Callable[..., Any]:
            def make(*args: Any) -> tuple[Any, ...]:
                made: list[Any] = []
                self.traced(lambda: made.extend(thunk.call_wrapped(*args)))
                return self.rewritten(made[0]), *made[1:]

            return make

        def function(fun: Any) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                is_array = [isinstance(arg, jax.Array) for arg in args]  # Some are symbolic zeros.

                def of_arrays(*arrays: jax.Array) -> Any:
                    rest = iter(arrays)
                    pairs = zip(args, is_array, strict=True)
                    return fun.call_wrapped(*(next(rest) if here else arg for arg, here in pairs))

                return self.call(of_arrays, *itertools.compress(args, is_array))

            return call

        kinds = {"jvp_jaxpr_fun": jaxpr_maker, "fwd_jaxpr_thunk": jaxpr_maker, "bwd": function}
        return {
            name: linear_util.wrap_init(kind(params[name]), debug_info=params[name].debug_info)
            for name, kind in kinds.items()
            if name in params
        }


def _is_about_pcast(error: Exception) -> bool:
    text = str(error)
    return "manual_axis_type" in text or "ManualAxisType" in text or "under jax.shard_map" in text


def _check_types(eqn: JaxprEqn) -> None:
    """Refuses operands that have no order, as JAX does over devices when it lowers them."""
    name = eqn.primitive.name
    if name in ("pmax", "pmin") and any(is_key(operand.aval) for operand in eqn.invars):
        raise TypeError(f"{name} does not accept typed PRNG keys: they have no order")


def _jaxprs(params: Mapping[str, Any]) -> list[Any]:
    values = (value if isinstance(value, tuple) else (value,) for value in params.values())
    return [x for x in itertools.chain(*values) if isinstance(x, Jaxpr | ClosedJaxpr)]


def _added_effects(new: Iterable[Any], old: Iterable[Any]) -> set[Any]:
    """Returns the effects of new equations, such as that of ``lax.axis_index``."""
    before, after = ({effect for x in xs for effect in x.effects} for xs in (old, new))
    return after - before
