"""What an audit claims of whole programs, outside of their shard_map too, against a run of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from pmapx._src.trees.checked_leaves import is_key

pytestmark = [pytest.mark.behaviour("A5"), pytest.mark.needs_devices(8)]

X = np.arange(32, dtype=np.float32).reshape(8, 4)
EQUAL_ROWS = np.tile(np.arange(8, dtype=np.float32), (8, 1))
SPLIT, COLUMNS = P("i"), P(None, "i")


def mesh(*sizes):
    names = ("i", "j")[: len(sizes)]
    return Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)


def mapped(body, in_specs=SPLIT, out_specs=SPLIT, *, sizes=(8,), **options):
    options = {"mesh": mesh(*sizes), "in_specs": in_specs, "out_specs": out_specs, **options}
    return jax.shard_map(body, check_vma=False, **options)


def put(x, spec, sizes=(8,)):
    return jax.device_put(x, NamedSharding(mesh(*sizes), spec))


def same(x):
    return x


def unlike_copies():
    """An array that its sharding calls replicated, with another value on each device."""
    return jax.jit(mapped(same, out_specs=P()))(X)


def random_callback(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda a: np.random.rand(*a.shape).astype(a.dtype), shape, x)


def total(x):
    return lax.psum(x, "i")


# By what is claimed: a program, its arguments, and which outputs must be called equal.
PROGRAMS = {
    "a replicated argument that a shard_map splits varies": lambda: (
        jax.jit(mapped(same)), [put(X, P())], [False]
    ),
    "in_shardings that replicate do not make rows equal": lambda: (
        jax.jit(mapped(same), in_shardings=NamedSharding(mesh(8), P())), [X], [False]
    ),
    "equal rows are not equal columns": lambda: (
        jax.jit(lambda x: (mapped(jnp.sin)(x), mapped(jnp.sin, COLUMNS, COLUMNS)(x))),
        [EQUAL_ROWS], [True, False],
    ),
    "rows made equal are not equal columns for the next shard_map": lambda: (
        jax.jit(lambda x: mapped(same, COLUMNS, COLUMNS)(mapped(total)(x @ jnp.ones((4, 8))))),
        [X], [False],
    ),
    "rows made equal stay equal for the next shard_map": lambda: (
        jax.jit(lambda x: mapped(jnp.cos, P("i", None))(mapped(total)(x))), [X], [True]
    ),
    "rows made equal differ after a sum over them": lambda: (
        jax.jit(lambda x: mapped(same)(jnp.cumsum(mapped(total)(x), 0))), [X], [False]
    ),
    "equal rows of one mesh are not those of another of the same names": lambda: (
        jax.jit(lambda x: mapped(same, sizes=(8, 1))(
            mapped(lambda x: jnp.arange(4.0) + lax.psum(x.sum(), "i"), sizes=(2, 4))(x)
        )), [X], [False],
    ),
    "out_shardings may split what is equal another way": lambda: (
        jax.jit(mapped(lambda x: jnp.arange(8.0)[None] + total(x.sum())),
                out_shardings=NamedSharding(mesh(8), COLUMNS)), [X], [False],
    ),
    "out_shardings may lay rows side by side": lambda: (
        jax.jit(mapped(same), out_shardings=NamedSharding(mesh(8), P())), [X], [True]
    ),
    "copies that nobody made equal differ": lambda: (
        jax.jit(mapped(same, out_specs=P())), [X], [False]
    ),
    "what is computed of copies that nobody made equal differs": lambda: (
        jax.jit(lambda x: 2 * mapped(same, out_specs=P())(x)), [X], [False]
    ),
    "copies that came in unlike stay so": lambda: (
        jax.jit(lambda h: h * 2), [unlike_copies()], [False]
    ),
    "copies that came in unlike stay so in a shard_map": lambda: (
        jax.jit(mapped(jnp.sin, P(), P())), [unlike_copies()], [False]
    ),
    "copies that came in unlike stay so in a pmap": lambda: (
        pmapx.pmap(jnp.sin, in_axes=None, axis_size=8), [unlike_copies()], [False]
    ),
    "a pmap of a replicated batch varies": lambda: (pmapx.pmap(jnp.sin), [put(X, P())], [False]),
    "columns that are equal stay so": lambda: (
        pmapx.pmap(lambda a: (a, jnp.cumsum(a)), in_axes=1),
        [np.ascontiguousarray(EQUAL_ROWS.T)], [True, True],
    ),
    "keys are compared as numbers are": lambda: (
        pmapx.pmap(lambda a, b: (jax.random.fold_in(a, 1), jax.random.fold_in(b, 1))),
        [jnp.stack([jax.random.key(0)] * 8), jax.random.split(jax.random.key(0), 8)],
        [True, False],
    ),
    "state equal along one axis and split along the other": lambda: (
        jax.jit(mapped(lambda w, x: w - lax.pmean(x.sum(), "i"), (P("i", "j"), P("i")),
                       P("i", "j"), sizes=(4, 2))),
        [np.tile(np.arange(2, dtype=np.float32), (4, 1)), X], [False],
    ),
    "more rows than devices": lambda: (
        pmapx.pmap(lambda x: (x, lax.axis_index("i")), axis_name="i", oversubscribe=True),
        [np.ones((16, 4), np.float32)], [False, False],
    ),
    "a callback under jit": lambda: (
        jax.jit(random_callback, out_shardings=NamedSharding(mesh(8), P())), [put(X, P())], [False]
    ),
    "a gradient through pmean is equal": lambda: (
        jax.jit(jax.grad(mapped(lambda w, x: lax.pmean(((x @ w) ** 2).mean(), "i"),
                                (P(), P("i")), P()))), [np.ones(4, np.float32), X], [True],
    ),
    "a manual axis beside one that is the compiler's": lambda: (
        jax.jit(mapped(total, out_specs=P(), sizes=(4, 2), axis_names={"i"})), [X], [True]
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", PROGRAMS)
def test_no_run_refutes_what_is_claimed_of_a_program(claim):
    f, args, expected = PROGRAMS[claim]()
    [audited] = pmapx.audit(f, *args).functions
    results = jax.tree.leaves(f(*args))

    assert [leaf.is_equal for leaf in audited.outputs] == expected
    for leaf, result in zip(audited.outputs, results, strict=True):
        data = jax.random.key_data(result) if is_key(result) else result
        parts = [np.asarray(shard.data) for shard in data.addressable_shards]
        if leaf.is_equal:
            assert all(np.array_equal(part, parts[0]) for part in parts), leaf


NESTED = {
    "sum over both": (lambda s: lax.psum(s, ("i", "j")), []),
    "sum over the outer": (lambda s: lax.psum(s, "i"), ["j"]),
    "sum over the inner": (lambda s: lax.psum(s, "j"), ["i"]),
    "index of the inner": (lambda s: lax.axis_index("j"), ["j"]),
    "its own": (lambda s: 2 * s, ["i", "j"]),
}


@pytest.mark.parametrize("what", NESTED)
def test_each_axis_of_nested_pmaps_is_reported(what):
    body, expected = NESTED[what]
    inner = pmapx.pmap(body, axis_name="j")
    outer = pmapx.pmap(lambda rows: inner(rows), axis_name="i")
    [leaf] = (
        pmapx.audit(outer, np.arange(24, dtype=np.float32).reshape(4, 2, 3)).functions[0].outputs
    )

    # JAX 0.8 leaves the rows of an inner map together on each device of the outer axis.
    split = [axis for axes in leaf.axes_by_dimension for axis in axes]
    assert list(leaf.varies_over) == [axis for axis in expected if axis in split]


LOOPS = {
    "scan": lambda g, x: lax.scan(lambda c, _: (g(x) + c, None), x[:1], None, length=2)[0],
    "while": lambda g, x: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, g(x) + c[1]), (0, x[:1])
    )[1],
    "cond": lambda g, x: lax.cond(x.sum() > 0, g, lambda x: x[:1], x),
    "scan of a scan": lambda g, x: lax.scan(
        lambda c, _: (LOOPS["scan"](g, x) + c, None), x[:1], None, length=2
    )[0],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_shard_map_in_a_loop_outside_is_looked_into(loop):
    unlike, equal = mapped(same, out_specs=P()), mapped(total, out_specs=P())

    def verdict(g):
        f = jax.jit(lambda x: LOOPS[loop](g, x), out_shardings=NamedSharding(mesh(8), P()))
        return pmapx.audit(f, put(X, P())).functions[0].outputs[0]

    assert not verdict(unlike).is_equal
    assert verdict(equal).is_equal
