"""Rules of random numbers: drawn from equal keys they are equal, if their shape is."""

from __future__ import annotations

from pmapx._src.batch_parallel.kinds import SAME, Relation, UnprovenError
from pmapx._src.batch_parallel.steps import Result, Rule, Step

_SHAPE = "draws values of the per-device batch's shape, the same on every device, from one key"


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
    """Keys from their data, whose last dimension is no longer seen."""
    step.require_same_params()
    kind = step.exact()
    if kind.relation is Relation.SHARD and kind.axis >= len(step.out_shapes()[0]):
        raise UnprovenError("takes the batch for the data of a key")
    return kind


RULES: dict[str, Rule] = {
    **dict.fromkeys(["random_bits", "random_split", "random_fold_in", "random_seed"], drawn),
    **dict.fromkeys(["random_clone", "random_unwrap", "threefry2x32"], drawn),
    # A gamma variate has a key by its position.
    **dict.fromkeys(["rng_bit_generator", "random_gamma"], drawn_from_one_state),
    "random_wrap": wrapped,
}
