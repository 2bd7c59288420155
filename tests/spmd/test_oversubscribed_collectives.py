"""Every collective with right and wrong arguments: oversubscribed maps accept what plain maps do.

The plain map of 8 elements on 8 devices is the reference. The same map on 4 devices and on 1 must
give the same result, or refuse the same call.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx

pytestmark = [pytest.mark.behaviour("A10"), pytest.mark.needs_devices(8)]

GROUPS = {
    "two": [[0, 2, 4, 6], [1, 3, 5, 7]],
    "one": [list(range(8))],
    "of one element": [[k] for k in range(8)],
    "not covering": [[0, 1], [2, 3]],
    "with a repeat": [[0, 1, 2, 3], [3, 4, 5, 6]],
    "unequal": [[0, 1, 2], [3, 4, 5, 6, 7]],
    "out of range": [[0, 1, 2, 3], [4, 5, 6, 8]],
    "too many": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
    "none": [],
}
PERMS = {
    "rotation": [(k, (k + 1) % 8) for k in range(8)],
    "rotation with a negative index": [(k, k - 1) for k in range(8)],
    "two pairs": [(0, 1), (2, 3)],
    "one to itself": [(3, 3)],
    "everyone to themselves": [(k, k) for k in range(8)],
    "nobody": [],
    "negative destination": [(0, -1), (1, 2)],
    "negative duplicate": [(0, 7), (1, -1)],
    "duplicate source": [(0, 1), (0, 2)],
    "duplicate destination": [(0, 1), (2, 1)],
    "eight times the same": [(0, 1)] * 8,
    "destination out of range": [(0, 8)],
    "source out of range": [(8, 0)],
    "all shifted out of range": [(k, k + 1) for k in range(8)],
    "triples": [(0, 1, 2)],
}
SHUFFLES = {
    "reversed": list(range(8))[::-1],
    "too short": [1, 0],
    "repeated": [0] * 8,
    "too long": list(range(9)),
    "out of range": [*range(7), 8],
}
SIZES = [1, 4, 7, 8, 9, 16]

REDUCTIONS = [lax.psum, lax.pmean, lax.pmax, lax.pmin]


def reductions():
    for reduce in REDUCTIONS:
        name = reduce.__name__
        yield name, lambda x, reduce=reduce: reduce(x, "i"), (3,), "float32"
        yield f"{name} of ints", lambda x, reduce=reduce: reduce(x, "i"), (3,), "int32"
        yield f"{name} of bools", lambda x, reduce=reduce: reduce(x, "i"), (3,), "bool"
        yield f"{name} of a constant", lambda x, reduce=reduce: x * reduce(2.5, "i"), (), "float32"
        yield f"{name} over no axis", lambda x, reduce=reduce: reduce(x, ()), (3,), "float32"
        yield f"{name} over an unbound axis", lambda x, r=reduce: r(x, "k"), (3,), "float32"
        yield f"{name} of a key", lambda x, r=reduce: r(jax.random.key(0), "i"), (), "float32"
        for kind, groups in GROUPS.items():
            yield (
                f"{name}, groups {kind}",
                lambda x, r=reduce, g=groups: r(x, "i", axis_index_groups=g),
                (3,),
                "float32",
            )
            yield (
                f"{name} of a constant, groups {kind}",
                lambda x, r=reduce, g=groups: x * r(2, "i", axis_index_groups=g),
                (),
                "float32",
            )


def gathers():
    for tiled in (False, True):
        for axis in (-3, -1, 0, 1, 2, 3):
            yield (
                f"all_gather at {axis}, tiled={tiled}",
                lambda x, a=axis, t=tiled: lax.all_gather(x, "i", axis=a, tiled=t),
                (2, 3),
                "float32",
            )
        for kind, groups in GROUPS.items():
            yield (
                f"all_gather, tiled={tiled}, groups {kind}",
                lambda x, t=tiled, g=groups: lax.all_gather(x, "i", tiled=t, axis_index_groups=g),
                (2,),
                "float32",
            )
        yield (
            f"all_gather of a scalar, tiled={tiled}",
            lambda x, t=tiled: lax.all_gather(x, "i", tiled=t),
            (),
            "float32",
        )


def scatters():
    for tiled in (False, True):

        def scatter(x, dimension=0, tiled=tiled, groups=None):
            return lax.psum_scatter(
                x, "i", scatter_dimension=dimension, tiled=tiled, axis_index_groups=groups
            )

        yield f"psum_scatter of a scalar, tiled={tiled}", scatter, (), "float32"
        for size in SIZES:
            for dimension in (0, 1):
                shape = (size,) if dimension == 0 else (2, size)
                yield (
                    f"psum_scatter of {shape} at {dimension}, tiled={tiled}",
                    lambda x, d=dimension, scatter=scatter: scatter(x, d),
                    shape,
                    "float32",
                )
        for kind, groups in GROUPS.items():
            for size in (4, 8):
                yield (
                    f"psum_scatter of {size}, tiled={tiled}, groups {kind}",
                    lambda x, g=groups, scatter=scatter: scatter(x, groups=g),
                    (size,),
                    "float32",
                )


def exchanges():
    for tiled in (False, True):

        def exchange(x, split, concat, tiled=tiled, groups=None):
            return lax.all_to_all(x, "i", split, concat, tiled=tiled, axis_index_groups=groups)

        yield (
            f"all_to_all of a scalar, tiled={tiled}",
            lambda x, exchange=exchange: exchange(x, 0, 0),
            (),
            "float32",
        )
        for size in SIZES:
            for split, concat in ((0, 0), (0, 1), (1, 0), (2, 0), (0, 2)):
                shape = (size, 2) if split == 0 else (2, size)
                yield (
                    f"all_to_all of {shape} from {split} to {concat}, tiled={tiled}",
                    lambda x, s=split, c=concat, exchange=exchange: exchange(x, s, c),
                    shape,
                    "float32",
                )
        for kind, groups in GROUPS.items():
            for size in (4, 8):
                yield (
                    f"all_to_all of {size}, tiled={tiled}, groups {kind}",
                    lambda x, g=groups, exchange=exchange: exchange(x, 0, 0, groups=g),
                    (size, 2),
                    "float32",
                )
    for size in SIZES:
        yield f"pswapaxes of {size}", lambda x: lax.pswapaxes(x, "i", 0), (size, 2), "float32"


def permutations():
    for kind, perm in PERMS.items():
        yield f"ppermute, {kind}", lambda x, p=perm: lax.ppermute(x, "i", p), (3,), "float32"
    for kind, perm in SHUFFLES.items():
        yield f"pshuffle, {kind}", lambda x, p=perm: lax.pshuffle(x, "i", p), (3,), "float32"


def indices():
    yield "axis_index", lambda x: x + lax.axis_index("i"), (3,), "float32"
    yield "axis_index of an unbound axis", lambda x: x + lax.axis_index("k"), (3,), "float32"
    yield "axis_size", lambda x: x * lax.axis_size("i"), (3,), "float32"
    yield "axis_size of an unbound axis", lambda x: x * lax.axis_size("k"), (3,), "float32"


def ragged_exchanges():
    # CPU cannot run it: that both refuse it is all there is to compare.
    def ragged(x, sizes=8):
        ones, slots = jnp.ones(sizes, jnp.int32), jnp.arange(sizes, dtype=jnp.int32)
        place = jnp.full(sizes, lax.axis_index("i"))
        return lax.ragged_all_to_all(x, jnp.zeros(8), slots, ones, place, ones, axis_name="i")

    yield "ragged_all_to_all", ragged, (8,), "float32"
    yield "ragged_all_to_all of too few sizes", lambda x: ragged(x, 4), (8,), "float32"


TABLE = [reductions, gathers, scatters, exchanges, permutations, indices, ragged_exchanges]


def outcome(mapped, x):
    try:
        result = mapped(x)
    except Exception as error:
        return error
    return result if jnp.issubdtype(result.dtype, jax.dtypes.prng_key) else np.asarray(result)


def difference(plain, over):
    if isinstance(plain, Exception) or isinstance(over, Exception):
        agree = isinstance(plain, Exception) and isinstance(over, Exception)
    else:
        agree = plain.shape == over.shape and plain.dtype == over.dtype and (plain == over).all()
    return None if agree else f"plain: {plain!r:.200}, oversubscribed: {over!r:.200}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", TABLE, ids=lambda cases: cases.__name__)
def test_an_oversubscribed_map_accepts_and_refuses_what_the_plain_map_does(cases, devices):
    differences = {}
    for name, call, shape, dtype in cases():
        x = (np.arange(8 * np.prod(shape)).reshape(8, *shape) % 7).astype(dtype)
        plain = outcome(pmapx.pmap(call, "i"), x)
        for count in (4, 1):
            mapped = pmapx.pmap(call, "i", oversubscribe=True, devices=devices[:count])
            if found := difference(plain, outcome(mapped, x)):
                differences[f"{name}, on {count} of the devices"] = found

    assert not differences


def test_the_size_of_an_untiled_psum_scatter_is_checked(devices):
    scatter = pmapx.pmap(
        lambda a: lax.psum_scatter(a, "i"), "i", oversubscribe=True, devices=devices[:4]
    )

    with pytest.raises(ValueError, match="must match shard count 8"):
        scatter(np.ones((8, 4), "float32"))


def test_pbroadcast_checks_its_source(devices):
    """The plain map has it on GPUs only."""
    send = pmapx.pmap(
        lambda x: lax.pbroadcast(x, "i", 8), "i", oversubscribe=True, devices=devices[:4]
    )

    with pytest.raises(ValueError, match="source must be an index"):
        send(np.arange(8.0, dtype="float32"))
