"""The collectives that ``jax.vmap`` refuses, written as ones that it takes.

Over an axis of ``jax.vmap``, JAX refuses ``axis_index_groups`` and a ``ppermute`` that leaves
elements out. Both are rewritten where they stand in the function's jaxpr, also in the bodies of
loops, branches, jits and remats and in custom derivative rules; all other equations stay as they
are.

The body of a loop has no room for new array constants, so the rules make none: what differs from
element to element comes from a whole ``ppermute`` of the axis index, whose pairs are part of the
equation.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import linear_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun


def supported(fun: Callable[..., Any], axis_name: Hashable, axis_size: int) -> Callable[..., Any]:
    """Returns ``fun`` with what vmap refuses over ``axis_name`` written as collectives it takes.

    The result is to be mapped with ``jax.vmap`` over an axis of that name and size. Collectives
    over several axes at once are left as they are.

    >>> import jax, jax.numpy as jnp
    >>> pairs = lambda x: jax.lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])
    >>> jax.vmap(supported(pairs, "i", 4), axis_name="i")(jnp.arange(4))
    Array([1, 1, 5, 5], dtype=int32)
    """
    rewriting = _Rewriting(axis_name, axis_size)

    def rewritten(*args: Any) -> Any:
        return rewriting.call(fun, *args)

    return rewritten


@dataclasses.dataclass(frozen=True)
class _Collective:
    """One equation's collective, as the element that runs it sees it."""

    axis_name: Hashable
    axis_size: int
    params: Mapping[str, Any]

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        return self.params["axis_index_groups"]

    @property
    def group_size(self) -> int:
        return len(self.groups[0])

    @property
    def group_bounds(self) -> list[int]:
        """Where the groups begin and end when the elements stand group after group."""
        return list(itertools.accumulate(map(len, self.groups), initial=0))

    @property
    def groups_are_equal(self) -> bool:
        return len({len(group) for group in self.groups}) == 1

    def in_group_order(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.groups))

    def permuted(self, x: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
        moves = any(source != destination for source, destination in pairs)
        return lax.ppermute(x, self.axis_name, pairs) if moves else x

    def rank(self, order: Sequence[int]) -> jax.Array:
        """The place of this element in ``order``, a list of all of them."""
        return self.permuted(lax.axis_index(self.axis_name), list(enumerate(order)))

    def own_group(self) -> jax.Array:
        rank = self.rank(self.in_group_order())
        if self.groups_are_equal:
            return lax.div(rank, self.group_size)
        starts = self.group_bounds[1:-1]
        return sum((lax.convert_element_type(rank >= at, rank.dtype) for at in starts), 0 * rank)

    def place_in_group(self) -> jax.Array:
        return lax.rem(self.rank(self.in_group_order()), self.group_size)

    def rows(self, x: jax.Array) -> jax.Array:
        """``x`` of all elements, group after group."""
        into_order = [(element, k) for k, element in enumerate(self.in_group_order())]
        return lax.all_gather(self.permuted(x, into_order), self.axis_name)

    def rows_by_group(self, x: jax.Array) -> jax.Array:
        return self.rows(x).reshape(len(self.groups), self.group_size, *x.shape)

    def reduced_by_group(self, reduce: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
        if self.groups_are_equal:
            return reduce(self.rows_by_group(x), (1,))
        rows = self.rows(x)
        spans = itertools.pairwise(self.group_bounds)
        return jnp.stack([reduce(rows[start:stop], (0,)) for start, stop in spans])


Rule = Callable[[_Collective, jax.Array], jax.Array]


def _all_reduce(reduce: Callable[..., jax.Array]) -> Rule:
    def rule(collective: _Collective, x: jax.Array) -> jax.Array:
        return _own(collective, collective.reduced_by_group(reduce, x))

    return rule


def _all_gather(collective: _Collective, x: jax.Array) -> jax.Array:
    members = _own(collective, collective.rows_by_group(x))
    dimension = collective.params["all_gather_dimension"]
    if collective.params["tiled"]:
        return _joined(members, dimension)
    return jnp.moveaxis(members, 0, dimension)


def _all_to_all(collective: _Collective, x: jax.Array) -> jax.Array:
    # The equation is always a tiled one: `lax.all_to_all` reshapes around it.
    parts = _own(
        collective, collective.rows_by_group(x), part_of=2 + collective.params["split_axis"]
    )
    return _joined(parts, collective.params["concat_axis"])


def _reduce_scatter(collective: _Collective, x: jax.Array) -> jax.Array:
    dimension = collective.params["scatter_dimension"]
    totals = collective.reduced_by_group(lax.reduce_sum, x)
    part = _own(collective, totals, part_of=1 + dimension)
    return part if collective.params["tiled"] else lax.squeeze(part, [dimension])


def _ppermute(collective: _Collective, x: jax.Array) -> jax.Array:
    pairs = list(collective.params["perm"])
    everyone = range(collective.axis_size)
    senders = [source for source, _ in pairs]
    receivers = [destination for _, destination in pairs]
    idle = [element for element in everyone if element not in receivers]
    silent = [element for element in everyone if element not in senders]
    from_someone = collective.permuted(x, [*pairs, *zip(silent, idle, strict=True)])
    is_receiver = collective.rank(receivers + idle) < len(receivers)
    return lax.select(is_receiver, from_someone, jnp.zeros_like(x))


def _own(collective: _Collective, by_group: jax.Array, part_of: int | None = None) -> jax.Array:
    """This element's group, the leading axis; of the axis ``part_of``, its part alone."""
    starts: list[Any] = [0] * by_group.ndim
    sizes = list(by_group.shape)
    starts[0], sizes[0] = collective.own_group(), 1
    if part_of is not None:
        sizes[part_of] //= collective.group_size
        starts[part_of] = collective.place_in_group() * sizes[part_of]
    return lax.squeeze(lax.dynamic_slice(by_group, starts, sizes), [0])


def _joined(rows: jax.Array, axis: int) -> jax.Array:
    """The rows one after the other along ``axis``."""
    shape = list(rows.shape[1:])
    shape[axis] *= rows.shape[0]
    return jnp.moveaxis(rows, 0, axis).reshape(shape)


RULES: dict[str, Rule] = {
    "psum": _all_reduce(lax.reduce_sum),
    "pmax": _all_reduce(lax.reduce_max),
    "pmin": _all_reduce(lax.reduce_min),
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "ppermute": _ppermute,
}
"""By the name of the primitive: the rule for one of its operands."""


class _Rewriting:
    """The rewriting of jaxprs for one axis; what is met again comes out as the same object."""

    def __init__(self, axis_name: Hashable, axis_size: int) -> None:
        self.axis_name = axis_name
        self.axis_size = axis_size
        self.done: dict[Any, Any] = {}

    def call(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Calls ``fun``, rewritten, where the axis is bound."""
        jaxpr, result = jax.make_jaxpr(fun, return_shape=True)(*args)
        outputs = jaxpr_as_fun(self.rewritten(jaxpr))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), outputs)

    def rewritten(self, value: Any) -> Any:
        """The value of a parameter, with the jaxprs in it rewritten; itself if none has to be."""
        if type(value) is tuple:
            new = tuple(map(self.rewritten, value))
            return value if all(a is b for a, b in zip(new, value, strict=True)) else new
        if not isinstance(value, Jaxpr | ClosedJaxpr):
            return value
        if value not in self.done:
            # On newer releases the two are one class.
            self.done[value] = (
                self.jaxpr(value) if isinstance(value, Jaxpr) else self.closed_jaxpr(value)
            )
        return self.done[value]

    def closed_jaxpr(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = self.rewritten(closed.jaxpr)
        return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        eqns = [new for eqn in jaxpr.eqns for new in self.equations(eqn)]
        if len(eqns) == len(jaxpr.eqns) and all(map(operator.is_, eqns, jaxpr.eqns)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, effects=jaxpr.effects | _added_effects(eqns, jaxpr.eqns))

    def equations(self, eqn: JaxprEqn) -> list[JaxprEqn]:
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
        if axes != self.axis_name and tuple(axes) != (self.axis_name,):
            return False
        leaves_some_out = "perm" in params and len(params["perm"]) < self.axis_size
        return leaves_some_out or params.get("axis_index_groups") is not None

    def written_out(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        rule = RULES[eqn.primitive.name]
        collective = _Collective(self.axis_name, self.axis_size, eqn.params)
        operands = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in eqn.invars]
        jaxpr = jax.make_jaxpr(lambda *xs: [rule(collective, x) for x in xs])(*operands).jaxpr
        outside: dict[Any, Any] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
        outside |= zip(jaxpr.outvars, eqn.outvars, strict=True)

        def placed(atoms: Sequence[Any]) -> list[Any]:
            return [outside.get(x, x) if isinstance(x, Var) else x for x in atoms]

        return [
            new.replace(
                invars=placed(new.invars),
                outvars=placed(new.outvars),
                source_info=eqn.source_info,
                ctx=eqn.ctx,
            )
            for new in jaxpr.eqns
        ]

    def derivative_rules(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The rules of a custom derivative, rewritten when they are used: only then are they traced."""

        def traced(thunk: Any) -> Callable[..., Any]:
            def call(*args: Any) -> tuple[Any, ...]:
                jaxpr, *rest = thunk.call_wrapped(*args)
                return self.rewritten(jaxpr), *rest

            return call

        def untraced(fun: Any) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                # Symbolic zeros are among the arguments of a backward rule.
                is_array = [isinstance(arg, jax.Array) for arg in args]

                def of_arrays(*arrays: Any) -> Any:
                    left = iter(arrays)
                    return fun.call_wrapped(
                        *(
                            next(left) if here else arg
                            for here, arg in zip(is_array, args, strict=True)
                        )
                    )

                return self.call(of_arrays, *itertools.compress(args, is_array))

            return call

        wrappers = {"jvp_jaxpr_fun": traced, "fwd_jaxpr_thunk": traced, "bwd": untraced}
        return {
            name: linear_util.wrap_init(wrap(params[name]), debug_info=params[name].debug_info)
            for name, wrap in wrappers.items()
            if name in params
        }


def _jaxprs(params: Mapping[str, Any]) -> list[Any]:
    values = itertools.chain.from_iterable(
        value if isinstance(value, tuple) else [value] for value in params.values()
    )
    return [value for value in values if isinstance(value, Jaxpr | ClosedJaxpr)]


def _added_effects(new: Sequence[Any], old: Sequence[Any]) -> set[Any]:
    """Indexing by the element has the effect of the axis, which ``ppermute`` does not have."""
    before, after = (set().union(*(x.effects for x in xs)) for xs in (old, new))
    return after - before
