"""Which outputs of a `shard_map` body are equal on all devices, by its jaxpr.

An abstract interpretation: every value of the jaxpr is given the set of mesh axes over which it may
differ between devices. Arguments start with the axes their spec names; an equation passes on what
its operands have, unless `RULES` has another rule for its primitive: `psum` removes its axis,
`axis_index` adds it. Loops run to a fixpoint.

The analysis is conservative. "Replicated" is a proof, given that the arguments are as declared and
that XLA computes the same bits from the same bits on every device; "varies" is conservative. A
primitive that JAX does not define varies over all axes. For warnings, `trust_unknown=True` takes
such a primitive for a function of its operands, which avoids false alarms.

To add a primitive, write a function of type `Rule` and add it to `RULES` under the name that the
primitive has in a printed jaxpr.
"""

import contextvars
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from pmapx._src.mesh.partition_specs import spec_axes
from pmapx._src.replication import jaxprs, source_locations
from pmapx._src.replication.jaxprs import Axis, Scope

Origins = Mapping[Axis, str]
"""The axes a value may vary over, each with the place where that began."""
Rule = Callable[[Scope, JaxprEqn, Sequence[Origins]], list[Origins]]
"""From the operands of an equation to its results, one `Origins` each."""

UNKNOWN_AXIS = "unknown axis"
"""Stands for the mesh's axes in `analyze_body` when no type in the jaxpr has them."""


@dataclasses.dataclass(frozen=True)
class Variation:
    """Over which mesh axes a value may differ between devices, and since where."""

    axes: frozenset[Axis]  # Empty if the value is equal on all devices.
    # Where it starts to vary: "`axis_index` at train.py:41", or "argument 1", counted from 0 over
    # the flattened arguments.
    since: str | None

    @property
    def is_replicated(self) -> bool:
        """Whether the value is proven equal, bit for bit, on all devices.

        >>> Variation(frozenset(), None).is_replicated
        True
        """
        return not self.axes


def analyze_body(jaxpr: Jaxpr, input_axes: Sequence[frozenset[Axis]]) -> list[Variation]:
    """Finds over which mesh axes each output of a `shard_map` body may vary.

    The body is traced with `check_vma=False`. `input_axes` are the axes over which each of its
    arguments varies; declare a train state replicated to ask whether a step keeps it so.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda s, x: (s, s + x, jax.lax.pmean(x, "i")), axis_env=[("i", 8)])
    >>> analyze_body(body(1.0, 2.0).jaxpr, [frozenset(), frozenset({"i"})])[1]
    Variation(axes=frozenset({'i'}), since='argument 1')
    """
    declared = [dict.fromkeys(axes, f"argument {i}") for i, axes in enumerate(input_axes)]
    mesh_axes = jaxprs.axes_in_types(jaxpr) or (UNKNOWN_AXIS,)
    scope = tuple(dict.fromkeys((*mesh_axes, *join(declared))))
    return [_variation(origins) for origins in _interpret(scope, jaxpr, declared)]


def shard_map_outputs(
    closed_jaxpr: ClosedJaxpr,
    varying: Sequence[Sequence[Hashable]] | None = None,
    *,
    trust_unknown: bool = False,
) -> list[Variation] | None:
    """Finds over which mesh axes each output of a jitted `shard_map` may vary, by its body.

    None unless the function has exactly one. `varying` are the mesh axes that each argument varies
    over, where `in_specs` do not show them. `trust_unknown` is for warnings, never to justify a
    change.


    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> def body(x):
    ...     return jax.lax.psum(x, "i"), 2 * x
    >>> mesh = Mesh(np.array(jax.devices()), ("i",))
    >>> f = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)
    >>> total, twice = shard_map_outputs(jax.make_jaxpr(jax.jit(f))(np.ones(jax.device_count())))
    >>> total.is_replicated, twice.since
    (True, 'argument 0')
    """
    top = closed_jaxpr.jaxpr
    arguments = {var: f"argument {i}" for i, var in enumerate(top.invars)}
    found = list(_shard_maps(top, arguments))
    if len(found) != 1:
        return None
    eqn, labels = found[0]
    scope = jaxprs.manual_axes(eqn)
    declared: dict[str | None, Sequence[Hashable]] = dict(
        zip(arguments.values(), varying or (), strict=varying is not None)
    )
    inputs = [
        dict.fromkeys(declared.get(label, axes), label or f"input {i} of the shard_map")
        for i, (axes, label) in enumerate(zip(jaxprs.in_axes(eqn), labels, strict=True))
    ]
    token = _trust_unknown.set(trust_unknown)
    try:
        body = jaxprs.opened(eqn.params["jaxpr"])
        return [_variation(origins) for origins in _interpret(scope, body, inputs)]
    finally:
        _trust_unknown.reset(token)


def with_inner(
    scope: Scope, jaxpr: Jaxpr, inputs: Sequence[Origins]
) -> tuple[list[Origins], dict[Var, Origins]]:
    """Finds the axes that each output of a body varies over, and where that begins.

    Also returns, by variable, the same for the results of each `shard_map` inside, over its own
    axes.
    """
    inner: dict[Var, Origins] = {}
    token = _inner.set(inner)
    try:
        return _interpret(scope, jaxpr, inputs), inner
    finally:
        _inner.reset(token)


def callee(eqn: JaxprEqn) -> Jaxpr | ClosedJaxpr | None:
    """Returns the jaxpr that an equation only calls with its operands, if it does."""
    if _rule(eqn) is not _call:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        called = eqn.params.get(name)
        if isinstance(called, Jaxpr | ClosedJaxpr):
            found = jaxprs.opened(called)
            if len(found.invars) == len(eqn.invars) and len(found.outvars) == len(eqn.outvars):
                return called
    return None


def reaches_beyond(eqn: JaxprEqn) -> bool:
    """Whether an equation outside of any `shard_map` may vary between devices by itself."""
    rule = _rule(eqn)
    if rule is _from_operands:
        return bool(eqn.effects) or any(True for _ in jaxprs.subjaxprs(eqn.params))
    return rule is _varies_over_all or (rule is _call and callee(eqn) is None)


_inner: contextvars.ContextVar[dict[Var, Origins] | None] = contextvars.ContextVar(
    "inner", default=None
)
_trust_unknown: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "trust_unknown", default=False
)


def _interpret(scope: Scope, jaxpr: Jaxpr, inputs: Sequence[Origins]) -> list[Origins]:
    return jaxprs.interpret(
        jaxpr, inputs, lambda atom: {}, lambda eqn, operands: _rule(eqn)(scope, eqn, operands)
    )


def _rule(eqn: JaxprEqn) -> Rule:
    if jaxprs.is_jaxs_own(eqn.primitive, RULES) or _trust_unknown.get():
        return RULES.get(eqn.primitive.name, _from_operands)
    return _varies_over_all


def _from_operands(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    # No rule for this primitive: arithmetic, unless it could depend on more than its operands.
    named = (jaxprs.axis_names(value, scope) for key, value in eqn.params.items() if "ax" in key)
    names_an_axis = any(axis in scope for axes in named for axis in axes)
    if eqn.effects or names_an_axis or any(True for _ in jaxprs.subjaxprs(eqn.params)):
        return _varies_over_all(scope, eqn, operands)
    return [join(operands)] * len(eqn.outvars)


def _varies_over_all(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    return [join([dict.fromkeys(scope, source_locations.place(eqn)), *operands])] * len(eqn.outvars)


def _same_value(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    # Result k is operand k; a union over all operands would be needlessly wide.
    return list(operands)


def _same_on_the_axis(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    axes = _communicated_axes(scope, eqn)
    groups = eqn.params.get("axis_index_groups")
    if groups is not None and len(groups) > 1:
        return _differs_on_the_axis(scope, eqn, operands)
    return [_without(origins, axes) for origins in operands]


def _differs_on_the_axis(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    axes = _communicated_axes(scope, eqn)
    if not axes:
        return _varies_over_all(scope, eqn, operands)
    # Operands first: one that varies already explains more than the collective does.
    own = dict.fromkeys(axes, source_locations.place(eqn))
    if len(operands) == len(eqn.outvars):
        return [join([origins, own]) for origins in operands]
    return [join([*operands, own])] * len(eqn.outvars)


def _call(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    called = callee(eqn)
    if called is None:
        return _varies_over_all(scope, eqn, operands)
    return _interpret(scope, jaxprs.opened(called), operands)


def _scan(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    body = jaxprs.opened(eqn.params["jaxpr"])
    counts = jaxprs.scan_counts(eqn)
    if counts is None:
        return _varies_over_all(scope, eqn, operands)
    num_consts, num_carry = counts
    consts, scanned = operands[:num_consts], operands[num_consts + num_carry :]

    def step(carry: Sequence[Origins]) -> list[Origins]:
        return _interpret(scope, body, [*consts, *carry, *scanned])

    carry, results = _fixpoint(step, operands[num_consts : num_consts + num_carry])
    runs_at_least_once = isinstance(eqn.params["length"], int) and eqn.params["length"] > 0
    return list(results) if runs_at_least_once else [*carry, *results[num_carry:]]


def _while(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    body, cond = jaxprs.opened(eqn.params["body_jaxpr"]), jaxprs.opened(eqn.params["cond_jaxpr"])
    cond_end = eqn.params["cond_nconsts"]
    body_end = cond_end + eqn.params["body_nconsts"]
    cond_consts, body_consts = operands[:cond_end], operands[cond_end:body_end]
    carry, _ = _fixpoint(
        lambda carry: _interpret(scope, body, [*body_consts, *carry]), operands[body_end:]
    )
    # Devices that leave the loop at different times leave with different values.
    [goes_on] = _interpret(scope, cond, [*cond_consts, *carry])
    return [join([origins, goes_on]) for origins in carry]


def _cond(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    choice, *arguments = operands
    branches = [_interpret(scope, jaxprs.opened(b), arguments) for b in eqn.params["branches"]]
    return [join([*results, choice]) for results in zip(*branches, strict=True)]


def _combinator(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    # Applies its functions to its operands and to their results, in an order we need not know.
    def step(values: Sequence[Origins]) -> list[Origins]:
        functions = jaxprs.subjaxprs(eqn.params)
        results = (_interpret(scope, f, [*values] * len(f.invars)) for f in functions)
        return [join(origins for several in results for origins in several)]

    values, _ = _fixpoint(step, [join(operands)])
    return values * len(eqn.outvars)


def _shard_map(scope: Scope, eqn: JaxprEqn, operands: Sequence[Origins]) -> list[Origins]:
    place = source_locations.place(eqn)
    inner = tuple(axis for axis in jaxprs.manual_axes(eqn) if axis not in scope)
    inputs = [
        join([origins, dict.fromkeys(axes, place)])
        for origins, axes in zip(operands, jaxprs.in_axes(eqn), strict=True)
    ]
    outputs = _interpret(scope + inner, jaxprs.opened(eqn.params["jaxpr"]), inputs)
    found = _inner.get()
    if found is not None:
        for var, origins in zip(eqn.outvars, outputs, strict=True):
            found[var] = join([found.get(var, {}), origins])
    # Concatenated shards are one value for the outer code. An axis that the out_spec does not name
    # stays: nothing checks that the shards are equal.
    specs = eqn.params.get("out_specs", ((),) * len(outputs))
    return [
        _without(origins, [axis for axis in inner if axis in spec_axes(spec)])
        for origins, spec in zip(outputs, specs, strict=True)
    ]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["psum", "psum2", "psum_invariant", "psum_invariant_start", "pmax", "pmin"]
        + ["all_gather", "all_gather_invariant", "all_gather_reduced", "all_gather_start"],
        _same_on_the_axis,
    ),
    **dict.fromkeys(
        ["axis_index", "ppermute", "pshuffle", "all_to_all", "ragged_all_to_all"]
        + ["psum_scatter", "reduce_scatter", "pgather"]
        + ["ppermute_start", "all_to_all_start", "reduce_scatter_start"],
        _differs_on_the_axis,
    ),
    # `pbroadcast` has named a change of type and a collective; this is right for both.
    **dict.fromkeys(
        ["pvary", "pcast", "pbroadcast", "optimization_barrier", "device_put"], _same_value
    ),
    **dict.fromkeys(
        ["jit", "pjit", "call", "core_call", "closed_call", "core_closed_call", "eval_jaxpr"]
        + ["remat", "remat2", "checkpoint", "composite", "compute_on", "xla_metadata_call"]
        + ["custom_jvp_call", "custom_jvp_call_jaxpr", "custom_vjp_call", "custom_vjp_call_jaxpr"]
        + ["custom_vmap_call"],
        _call,
    ),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    **dict.fromkeys(
        ["reduce", "reduce_window", "select_and_scatter", "custom_linear_solve"]
        + ["scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"]
        + ["scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max"],
        _combinator,
    ),
    # Code that JAX cannot see into, memory that others write, and generators with hidden state.
    **dict.fromkeys(
        ["pure_callback", "io_callback", "debug_callback", "buffer_callback", "ffi_call"]
        + ["call_exported", "call_hi_primitive", "tpu_custom_call", "infeed", "rng_uniform"]
        + ["empty", "empty2", "new_ref", "get", "swap", "addupdate", "freeze"],
        _varies_over_all,
    ),
}
"""By primitive name. A JAX primitive not listed here counts as a function of its operands."""


def _fixpoint(
    step: Callable[[Sequence[Origins]], Sequence[Origins]], start: Sequence[Origins]
) -> tuple[list[Origins], Sequence[Origins]]:
    """The least values that hold `start` and that `step` does not widen, and what it makes of them.

    What `step` returns begins with the values; more may follow.
    """
    values = list(start)
    while True:
        results = step(values)
        wider = [join(pair) for pair in zip(values, results, strict=False)]
        if all(len(new) == len(old) for new, old in zip(wider, values, strict=True)):
            return values, results
        values = wider


def join(several: Iterable[Origins]) -> Origins:
    """Returns all axes of several, each with the first place where it began."""
    joined: dict[Axis, str] = {}
    for origins in several:
        for axis, origin in origins.items():
            joined.setdefault(axis, origin)
    return joined


def _without(origins: Origins, axes: Sequence[Axis]) -> Origins:
    return {axis: origin for axis, origin in origins.items() if axis not in axes}


def _variation(origins: Origins) -> Variation:
    return Variation(frozenset(origins), next(iter(origins.values()), None))


def _communicated_axes(scope: Scope, eqn: JaxprEqn) -> tuple[Axis, ...]:
    return jaxprs.axis_names(eqn.params.get("axes", eqn.params.get("axis_name", ())), scope)


def _shard_maps(
    jaxpr: Jaxpr, labels: dict[Var, str]
) -> Iterator[tuple[JaxprEqn, list[str | None]]]:
    """Every `shard_map` outside of others, and for its operands the argument each was made from."""
    labels = dict(labels)
    for eqn in jaxpr.eqns:
        sources = [None if isinstance(v, Literal) else labels.get(v) for v in eqn.invars]
        if eqn.primitive.name == "shard_map":
            yield eqn, sources
            continue
        if len(distinct := {source for source in sources if source}) == 1:
            labels.update(dict.fromkeys(eqn.outvars, distinct.pop()))
        for sub in jaxprs.subjaxprs(eqn.params):
            is_call = len(sub.invars) == len(sources)
            inner = {v: s for v, s in zip(sub.invars, sources, strict=False) if s and is_call}
            yield from _shard_maps(sub, inner)
