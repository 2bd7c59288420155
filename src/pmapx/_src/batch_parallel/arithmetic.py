"""Rules of operations on each element, and of random numbers.

Drawn from equal keys these are equal, if their shape is.
"""

import jax.numpy as jnp
import numpy as np

from pmapx._src.batch_parallel.kinds import MAX, MIN, SAME, Kind, Relation, UnprovenError, Value
from pmapx._src.batch_parallel.steps import Result, Rule, Step, description

_SHAPE = "draws values of the per-device batch's shape, the same on every device, from one key"
_USES_TOTAL = "uses what a loop over the batch accumulates"


def not_linear(step: Step) -> Result:
    step.require_same_params()
    return step.exact()


def homogeneous(step: Step) -> Kind:
    """Scales as its operands do, by a positive factor: max, abs, clamp."""
    step.require_same_params()
    for relation, name in ((Relation.MAX, "max"), (Relation.MIN, "min")):
        if step.name == name and any(kind.relation is relation for kind in step.kinds):
            others = [v.kind for v in step.values if v.kind.relation is not relation]
            if all(kind == SAME for kind in others):
                return Kind(relation)
    kind = step.common()
    if not kind.is_scaled_value:
        raise step.unproven()
    return kind


def comparison(step: Step) -> Result:
    """Is the same for operands of any one scale."""
    kind = homogeneous(step)
    return kind.scaled(-kind.scale)


def addition(step: Step) -> Result:
    first, second = step.values
    extremes = [kind for kind in step.kinds if kind.relation in (Relation.MAX, Relation.MIN)]
    totals = [kind for kind in step.kinds if kind.relation is Relation.TOTAL]
    if totals:
        return _more_of(totals, step)
    if not extremes:
        return step.common()
    other = second if extremes[0] == first.kind else first
    if other.kind != SAME:
        raise step.unproven()
    is_subtracted = step.name == "sub" and extremes[0] == second.kind
    return _negated(extremes[0]) if is_subtracted else extremes[0]


def _more_of(totals: list[Kind], step: Step) -> Result:
    """Adds to a carry of a loop over microbatches; its segments tell whether anything was added."""
    [total, *more] = totals
    others = [value for value in step.values if value.kind.relation is not Relation.TOTAL]
    if more or (step.name == "sub" and step.kinds[1] == total):
        raise UnprovenError(_USES_TOTAL)
    [added] = others
    if added.is_zero:
        return total
    scale = added.kind.scale + (added.kind.relation is Relation.SAME)
    if added.kind.relation not in (Relation.SAME, Relation.SUM) or (
        total.segments and total.scale != scale
    ):
        raise UnprovenError("accumulates values of different kinds over the batch")
    return Kind(Relation.TOTAL, scale, total.axis, 1)


def position_in_batch(step: Step) -> Result | None:
    """Follows the device's index to the position in the global batch: i + b * axis_index."""
    [value, *more] = [value for value in step.values if value.device_stride is not None]
    stride = value.device_stride
    assert stride is not None
    if step.name in ("broadcast_in_dim", "reshape", "squeeze", "copy"):
        return Value(value.kind, device_stride=stride)
    if step.name == "convert_element_type":
        to = step.out_dtype()
        is_wide = jnp.issubdtype(to, jnp.integer) and jnp.iinfo(to).bits >= 32
        return Value(value.kind, device_stride=stride) if is_wide else None
    if more or len(step.values) != 2 or step.name not in ("add", "mul"):
        return None
    [other] = [each for each in step.values if each is not value]
    if other.pair is None:
        return None
    local, global_ = (np.asarray(x) for x in other.pair)
    if step.name == "mul":
        is_number = local.ndim == 0 and local.dtype.kind in "iu"
        return Value(value.kind, device_stride=stride * int(local)) if is_number else None
    on_devices = [local + d * stride for d in range(step.n)]
    for axis in range(local.ndim if local.shape == step.out_shapes()[0] else 0):
        everywhere = np.concatenate(on_devices, axis)
        if everywhere.shape == global_.shape and np.array_equal(everywhere, global_):
            return Kind(Relation.SHARD, 0, axis)
    return None


def product(step: Step, first: Value, second: Value) -> Kind:
    """Returns the kind of what is linear in each of two operands, element by element."""
    one, other = first.kind, second.kind
    if one.relation is Relation.SAME and other.relation in (Relation.SHARD, Relation.SUM):
        return other.scaled(one.scale)
    if other.relation is Relation.SAME and one.relation in (Relation.SHARD, Relation.SUM):
        return one.scaled(other.scale)
    unscaled = [Value(kind.scaled(-kind.scale)) for kind in (one, other)]
    if not one.is_scaled_value or not other.is_scaled_value:
        raise step.unproven([first, second])
    return step.exact(unscaled).scaled(one.scale + other.scale)


def division(step: Step) -> Result:
    first, second = step.values
    if not jnp.issubdtype(step.dtype(), jnp.inexact):
        return step.exact()
    if second.kind.relation in (Relation.SUM, Relation.MAX, Relation.MIN):
        raise UnprovenError(f"divides by {description(second)}")
    inverse = Value(second.kind.scaled(-2 * second.kind.scale))
    return product(step, first, inverse)


def negation(step: Step) -> Result:
    [kind] = step.kinds
    if kind.relation is Relation.TOTAL:
        raise UnprovenError(_USES_TOTAL)
    if not jnp.issubdtype(step.dtype(), jnp.signedinteger) and not jnp.issubdtype(
        step.dtype(), jnp.inexact
    ):
        return step.exact() if kind.relation is not Relation.SUM else kind
    return _negated(kind)


def _negated(kind: Kind) -> Kind:
    return {MAX: MIN, MIN: MAX}.get(kind, kind)


def conversion(step: Step) -> Result:
    """A change of type, linear unless it rounds to integers or wraps."""
    step.require_same_params("sharding")
    [value] = step.values
    source, target = step.dtype(), step.out_dtype()
    is_linear = jnp.issubdtype(target, jnp.inexact) and source != np.bool_
    if jnp.issubdtype(target, jnp.integer) and jnp.issubdtype(source, jnp.integer):
        is_linear = (
            jnp.iinfo(target).bits >= jnp.iinfo(source).bits
            and jnp.iinfo(target).min <= jnp.iinfo(source).min
        )
    is_extreme = value.kind.relation in (Relation.MAX, Relation.MIN)
    if is_linear or (is_extreme and target != np.bool_ and source == np.bool_):
        return value.kind
    return step.exact()


def power(step: Step) -> Result:
    """A power of each element, where the scale is raised too."""
    step.require_same_params("accuracy")
    kind = step.common()
    if kind.scale == 0 or not kind.is_scaled_value:
        return step.exact()
    doubled = {"sqrt": 1, "rsqrt": -1, "square": 4}.get(step.name)
    doubled = 2 * step.eqn.params["y"] if doubled is None else doubled
    if (kind.scale * doubled) % 2:
        raise step.unproven()
    return kind.scaled(kind.scale * doubled // 2 - kind.scale)


def selection(step: Step) -> Result:
    which, *cases = step.values
    if not which.kind.is_exact:
        raise UnprovenError(f"selects by {description(which)}")
    kind = step.common(cases)
    if kind.relation is Relation.SPLIT:
        raise UnprovenError("selects among microbatches")
    if which.kind == SAME:
        return kind
    if not kind.is_scaled_value:
        raise step.unproven([which, *cases])
    scale = kind.scale
    return step.exact([which, Value(kind.scaled(-scale))]).scaled(scale)


def linear(step: Step) -> Result:
    step.require_same_params()
    return step.values[0].kind


def drawn(step: Step) -> Result:
    """A function of each key; what it draws comes after the dimensions of the keys."""
    kind = step.exact()
    try:
        step.require_same_params()
    except UnprovenError:
        raise UnprovenError(_SHAPE) from None
    return kind


def drawn_from_one_state(step: Step) -> Result:
    step.require_same_params()
    if step.exact() != SAME:
        raise UnprovenError("draws by the position of an example on its device")
    return SAME


def wrapped(step: Step) -> Result:
    """Keys from their data, whose last dimension is hidden."""
    step.require_same_params()
    kind = step.exact()
    if kind.relation is Relation.SHARD and kind.axis >= len(step.out_shapes()[0]):
        raise UnprovenError("uses the batch as the data of a key")
    return kind


_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "sign", "lt_to", "le_to", "eq_to"]
_LINEAR = ["copy", "real", "imag", "reduce_precision", "stop_gradient", "name"]
_NOT_LINEAR = """
exp exp2 expm1 log log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
logistic erf erfc erf_inv lgamma digamma polygamma igamma igammac igamma_grad_a zeta
bessel_i0e bessel_i1e regularized_incomplete_beta random_gamma_grad floor ceil round rem pow
cbrt nextafter is_finite not and or xor shift_left shift_right_logical
shift_right_arithmetic population_count clz complex conj log2 one_minus_square polynomial mulhi
"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_NOT_LINEAR.split(), not_linear),
    **dict.fromkeys(["max", "min", "abs", "clamp"], homogeneous),
    **dict.fromkeys(_COMPARISONS, comparison),
    **dict.fromkeys(["add", "sub", "add_any"], addition),
    **dict.fromkeys(["sqrt", "rsqrt", "square", "integer_pow"], power),
    **dict.fromkeys(_LINEAR, linear),
    "mul": lambda step: product(step, *step.values),
    "div": division,
    "neg": negation,
    "convert_element_type": conversion,
    "select_n": selection,
    **dict.fromkeys(["random_bits", "random_split", "random_fold_in", "random_seed"], drawn),
    **dict.fromkeys(["random_clone", "random_unwrap", "threefry2x32"], drawn),
    # A gamma variate has a key by its position.
    **dict.fromkeys(["rng_bit_generator", "random_gamma"], drawn_from_one_state),
    "random_wrap": wrapped,
}
ZERO_STAYS = {"add", "sub", "add_any", "mul", "neg", "convert_element_type", "copy", "select_n"}
"""Results are zero where all operands are; of a selection, where all cases are."""
