"""Collectives that `jax.vmap` refuses, in functions made fit for it (A10)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from collective_models import grouped_cases, same_for_all, sent, ungrouped_cases
from oracle import assert_same
from pmapx._src.spmd.vmap_collectives import supported

pytestmark = pytest.mark.behaviour("A10")

CASES = [case for case in ungrouped_cases(6) + grouped_cases(6) if not case.in_vmap]
LINEAR_CASES = [case for case in CASES if case.is_linear]
# Where two rows hold the largest number, the model of pmax shares out the gradient otherwise.
DIFFERENTIABLE_CASES = [case for case in CASES if case.name[:4] not in ("pmax", "pmin")]

N = jax.device_count()
GROUPS = [group for group in (list(range(0, N, 2)), list(range(1, N, 2))[::-1]) if group]
PAIRS = [(k, k - 2) for k in range(2, N)]


def batched(fun, n=N, **options):
    return jax.jit(jax.vmap(supported(fun, "i", n), axis_name="i", axis_size=n, **options))


def assert_close(actual, expected):
    assert_same(actual, expected, rtol=1e-4, atol=1e-4)


def group_sum(x):
    return lax.psum(x, "i", axis_index_groups=GROUPS)


def shifted(x):
    return lax.ppermute(x, "i", PAIRS)


def rows(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(N, 3)), jnp.float32)


def pushed_forward(mapped, x, tangent):
    return jax.jvp(mapped, (x,), (tangent,))


def pulled_back(mapped, x, _):
    value, pull_back = jax.vjp(mapped, x)
    return value, pull_back(jax.tree.map(lambda y: jnp.cos(y) + y, value))


@functools.cache
def compared(case):
    """The results of a case beside those of its model."""

    def loss(x):
        return (case.call(x) ** 2).sum()

    @jax.jit
    def both(*arguments):
        mapped = batched(case.call, 6)
        pairs = {"tangent": [pushed_forward(f, *arguments) for f in (mapped, case.model)]}
        if case in DIFFERENTIABLE_CASES:
            pairs["cotangent"] = [pulled_back(f, *arguments) for f in (mapped, case.model)]
        if case in LINEAR_CASES:
            x = arguments[0]
            whole = jax.grad(lambda x: (case.model(x) ** 2).sum())(x)
            pairs["gradient"] = [batched(jax.grad(loss), 6)(x), whole]
        return pairs

    return both(case.rows(6), case.rows(6, seed=1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batched_collective_that_jax_rejects_returns_the_right_values(case):
    with pytest.raises((NotImplementedError, AssertionError)):
        jax.eval_shape(jax.vmap(case.call, axis_name="i"), case.rows(6))

    (value, _), (wanted, _) = compared(case)["tangent"]
    assert_same(value, wanted)


@pytest.mark.parametrize("case", DIFFERENTIABLE_CASES, ids=str)
def test_the_gradient_outside_a_batched_collective_is_that_of_the_mapped_function(case):
    assert_close(*compared(case)["cotangent"])


@pytest.mark.parametrize("case", LINEAR_CASES, ids=str)
def test_its_gradient_taken_inside_is_that_of_the_sum_of_all_losses(case):
    assert_close(*compared(case)["gradient"])


@pytest.mark.parametrize("case", LINEAR_CASES, ids=str)
def test_tangents_go_through_it_as_values_do(case):
    assert_close(*compared(case)["tangent"])


@pytest.mark.parametrize("tiled", [False, True])
def test_all_axes_may_be_split_joined_and_scattered(tiled):
    groups = [[3, 0], [1, 2]]
    x = jnp.arange(256).reshape(4, 4, 4, 4) if tiled else jnp.arange(32).reshape(4, 2, 2, 2)

    def exchanges(x, **options):
        options |= {"tiled": tiled}
        for axis in range(3):
            yield lax.psum_scatter(x, "i", scatter_dimension=axis, **options)
            yield lax.all_gather(x, "i", axis=axis, **options)
            for other in range(3):
                yield lax.all_to_all(x, "i", axis, other, **options)

    actual = batched(lambda x: list(exchanges(x, axis_index_groups=groups)), 4)(x)

    alone = jax.jit(jax.vmap(lambda x: list(exchanges(x)), axis_name="i"))
    for group in map(np.array, groups):
        assert_same([y[group] for y in actual], alone(x[group]))


@pytest.mark.parametrize("name", ["psum", "pmax", "pmin"])
def test_the_groups_of_a_reduction_may_differ_in_size(name):
    groups = [[4], [0, 5, 2], [1, 3]]
    x = jnp.asarray(np.random.default_rng(0).integers(-9, 9, size=(6, 2)), jnp.int8)
    reduce = {"psum": np.sum, "pmax": np.max, "pmin": np.min}[name]

    actual = batched(lambda x: getattr(lax, name)(x, "i", axis_index_groups=groups), 6)(x)

    assert actual.dtype == jnp.int8
    for group in groups:
        wanted = reduce(np.asarray(x)[group], axis=0)
        np.testing.assert_array_equal(np.asarray(actual)[group], [wanted] * len(group))


@pytest.mark.parametrize("groups", [[[0], [1], [2], [3]], [[2, 0, 3, 1]]], ids=str)
def test_a_group_may_be_one_element_or_all(groups):
    x = jnp.arange(8.0).reshape(4, 2)

    actual = batched(lambda x: lax.all_gather(x, "i", axis_index_groups=groups), 4)(x)

    for group in groups:
        assert_same(actual[np.array(group)], jnp.stack([x[np.array(group)]] * len(group)))


@pytest.mark.parametrize(
    "pairs", [[], [(2, 2)], [(0, 3), (3, 0)], [(1, 0), (2, 1), (3, 2)]], ids=str
)
def test_a_device_that_receives_nothing_has_zeros(pairs):
    x = jnp.asarray([[1.0, jnp.nan], [2.0, jnp.inf], [3.0, 0.0], [4.0, -1.0]])

    assert_same(batched(lambda x: lax.ppermute(x, "i", pairs), 4)(x), sent(pairs)(x))


def test_an_operand_that_is_the_same_for_all_may_be_reduced():
    groups = [[3, 0], [1, 2]]

    def fun(x, same):
        return lax.psum(same, "i", axis_index_groups=groups), lax.ppermute(same, "i", [(0, 1)])

    summed, moved = batched(fun, 4, in_axes=(0, None))(jnp.arange(4.0), jnp.float32(3))

    assert_same(summed, jnp.full(4, 6, jnp.float32))
    assert_same(moved, jnp.asarray([0.0, 3.0, 0.0, 0.0]))


def test_pbroadcast_copies_the_shard_of_its_source():
    x = jnp.arange(8.0).reshape(4, 2)

    assert_same(batched(lambda x: lax.pbroadcast(x, "i", 2), 4)(x), jnp.stack([x[2]] * 4))


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (
            lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1]]),
            "cover the 4 indices of the axis",
        ),
        (lambda x: lax.all_gather(x, "i", axis_index_groups=[[0], [1, 2, 3]]), "same size"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), "unique"),
        (lambda x: lax.ppermute(x, "i", [(1, 0), (2, 0)]), "unique"),
    ],
)
def test_what_no_pmap_takes_is_an_error(fun, message):
    with pytest.raises(ValueError, match=message):
        batched(fun, 4)(jnp.arange(4.0))


def test_trees_of_operands_and_other_dtypes_are_taken():
    groups = [[3, 0], [1, 2]]

    def fun(tree):
        return lax.psum(tree, "i", axis_index_groups=groups)

    tree = {
        "bfloat16": jnp.arange(4, dtype=jnp.bfloat16),
        "bool": jnp.asarray([True, True, False, True]),
        "complex": jnp.arange(4) * 1j,
    }

    def wanted(x):
        x = x.astype(jnp.int32) if x.dtype == bool else x
        return same_for_all(lambda rows: rows.sum(0))(x, groups)

    assert_same(batched(fun, 4)(tree), jax.tree.map(wanted, tree))


@jax.custom_jvp
def doubled_by_jvp(x):
    return 2 * group_sum(x)


@doubled_by_jvp.defjvp
def _doubled_by_jvp(primals, tangents):
    # Three, not two: shows that the rule is used.
    return 2 * group_sum(*primals), 3 * group_sum(*tangents) + shifted(*tangents)


@jax.custom_vjp
def doubled_by_vjp(x):
    return 2 * group_sum(x)


doubled_by_vjp.defvjp(
    lambda x: (2 * group_sum(x), shifted(x)), lambda kept, ct: (3 * group_sum(ct) + shifted(kept),)
)


@jax.custom_vjp
def synchronised(x):
    return jnp.sin(x)


synchronised.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (group_sum(ct * jnp.cos(x)),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_zeros(scale, x, y, count):
    return group_sum(x) * scale, y + count


def _with_zeros_fwd(scale, x, y, count):
    return with_zeros(scale, x.value, y.value, count.value), None


def _with_zeros_bwd(scale, _, cts):
    is_zero = [isinstance(ct, jax.custom_derivatives.SymbolicZero) for ct in cts]
    assert is_zero == [False, True]
    return scale * group_sum(cts[0]), None, None


with_zeros.defvjp(_with_zeros_fwd, _with_zeros_bwd, symbolic_zeros=True)


def in_while(x):
    return lax.while_loop(
        lambda c: (c[0] < 3) & (group_sum(c[1]).sum() < 1e6),
        lambda c: (c[0] + 1, shifted(c[1]) + group_sum(c[1])),
        (0, x),
    )[1]


def in_branches(x):
    # Devices that meet in a collective must take the same branch.
    x = lax.switch(lax.psum(x, "i").astype(int)[0] % 2, [group_sum, shifted, jnp.sin], x)
    return lax.cond(group_sum(x)[0] > 0, lambda x: 2 * group_sum(x), lambda x: -x, x)


def repeated(step):
    return lambda x: lax.scan(lambda carry, _: (step(carry), None), x, length=2)[0]


PROGRAMS = {
    "scan": lambda x: lax.scan(lambda c, y: (c + shifted(y), group_sum(c * y)), x, 2 * x[None])[1],
    "scan in scan": repeated(repeated(lambda x: jnp.sin(group_sum(x)))),
    "reversed scan": lambda x: lax.scan(
        lambda c, y: (shifted(c) * y, c), x, jnp.stack([x, x]), reverse=True
    ),
    "while": in_while,
    "branches": in_branches,
    "jit": jax.jit(lambda x: jax.jit(group_sum)(x) * shifted(jnp.sin(x))),
    "remat": jax.checkpoint(lambda x: jnp.sin(group_sum(jnp.sin(x))) + shifted(x)),
    "grad": jax.grad(lambda x: (group_sum(x) ** 3 * shifted(x)).sum()),
    "grad of remat": jax.grad(
        jax.checkpoint(lambda x: jnp.sin(group_sum(jnp.sin(x)) + shifted(x)).sum())
    ),
    "grad of scan": jax.grad(lambda x: repeated(lambda x: jnp.sin(group_sum(x)))(x).sum()),
    "custom_jvp": lambda x: doubled_by_jvp(jnp.sin(x)),
    "custom_jvp in scan": repeated(doubled_by_jvp),
    "grad of custom_jvp": jax.grad(lambda x: jnp.sin(doubled_by_jvp(x)).sum()),
    "custom_vjp": lambda x: doubled_by_vjp(jnp.sin(x)),
    "custom_vjp in scan": repeated(doubled_by_vjp),
    "custom_vjp in jit and remat": jax.jit(jax.checkpoint(lambda x: doubled_by_vjp(jnp.sin(x)))),
    "custom_vjp with symbolic zeros": lambda x: with_zeros(2.0, jnp.sin(x), 1.0, 3)[0],
    "backward rule alone": synchronised,
    "grad of custom_vjp": jax.grad(lambda x: jnp.sin(doubled_by_vjp(x)).sum()),
    "vmap over another axis": jax.vmap(
        lambda y: group_sum(y * lax.psum(y, "j")) + lax.axis_index("j"), axis_name="j"
    ),
    "literals": lambda x: x + lax.pmax(2.0, "i", axis_index_groups=GROUPS) + group_sum(1.0),
}
FORWARD = {"while", "custom_jvp", "custom_jvp in scan"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_derivatives_are_those_of_a_map_over_devices(name):
    @jax.jit
    def results_of_both(x, tangent):
        differentiated = pushed_forward if name in FORWARD else pulled_back
        mappings = batched(PROGRAMS[name]), pmapx.pmap(PROGRAMS[name], "i")
        return [differentiated(mapped, x, tangent) for mapped in mappings]

    assert_close(*results_of_both(rows(), rows(seed=1)))


def test_values_of_the_surrounding_trace_may_be_closed_over():
    def fun(x, y):
        return supported(lambda x: group_sum(x * y) + y, "i", N)(x)

    actual = jax.jit(jax.vmap(fun, axis_name="i"))(rows(), rows(1))

    assert_close(actual, pmapx.pmap(lambda x, y: group_sum(x * y) + y, "i")(rows(), rows(1)))


def test_callbacks_in_it_run_once_an_element():
    seen = []

    def fun(x):
        def body(c, _):
            jax.debug.callback(lambda value: seen.append(int(value)), group_sum(c))
            return c + 1, None

        return lax.scan(body, x, length=2)[0]

    jax.block_until_ready(batched(fun)(jnp.zeros(N)))
    jax.effects_barrier()

    sums = [len(group) * step for group in GROUPS for step in range(2) for _ in group]
    assert sorted(seen) == sorted(sums)


def test_collectives_over_other_axes_are_left_as_they_are():
    pairs = [[0, 1]]

    def inner(y):
        return lax.psum(y, "j", axis_index_groups=pairs), lax.ppermute(y, "j", [(0, 1)])

    def jaxpr_of(fun):
        traced = []

        def row(x):
            traced.append(jax.make_jaxpr(fun, axis_env=[("j", 2)])(x))
            return x

        jax.vmap(row, axis_name="i")(jnp.arange(4.0))
        return str(traced[0])

    assert jaxpr_of(supported(inner, "i", 4)) == jaxpr_of(inner)


def untouched(x):
    x = jax.nn.relu(jax.jit(jnp.sin)(x)) + lax.psum(x, "i") + lax.all_gather(x, "i").sum()
    x = lax.scan(lambda c, _: (jax.checkpoint(jnp.cos)(c), c), x, length=3)[0]
    x = lax.cond(x > 0, synchronised, jax.nn.softplus, x)
    jax.debug.print("{}", x)
    return lax.while_loop(lambda x: x < 3, lambda x: x + 1, x)


def jaxpr_of_row(fun, axis_size):
    return jax.make_jaxpr(fun, axis_env=[("i", axis_size)])(1.0)


def test_a_function_without_them_comes_out_with_the_same_jaxpr():
    actual = jaxpr_of_row(supported(untouched, "i", 4), 4)

    assert str(actual) == str(jaxpr_of_row(untouched, 4))


def test_values_computed_before_a_collective_are_unchanged():
    def fun(x):
        return lax.psum(untouched(x), "i", axis_index_groups=[[0, 1], [2, 3]])

    jaxpr = jaxpr_of_row(fun, 4).jaxpr
    rewritten = jaxpr_of_row(supported(fun, "i", 4), 4).jaxpr

    count = len(jaxpr.eqns) - 1
    assert jaxpr.eqns[count].primitive.name == "psum"
    assert len(rewritten.eqns) > count
    before, after = (j.replace(eqns=j.eqns[:count], outvars=[]) for j in (jaxpr, rewritten))
    assert str(after) == str(before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_result_is_weakly_typed_where_that_of_the_collective_is(case):
    x = jax.ShapeDtypeStruct(case.row_shape, jnp.float32, weak_type=True)

    def out_avals(fun):
        return jax.make_jaxpr(fun, axis_env=[("i", 6)])(x).out_avals

    mapped = jax.eval_shape(
        batched(case.call, 6), jax.ShapeDtypeStruct((6, *x.shape), x.dtype, weak_type=True)
    )
    (wanted,) = out_avals(case.call)
    assert mapped.weak_type == wanted.weak_type
    assert out_avals(supported(case.call, "i", 6)) == [wanted]


def test_a_function_jitted_once_stays_one_function():
    once = jax.jit(lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]))

    jaxpr = jaxpr_of_row(supported(lambda x: once(x) * once(x + 1), "i", 4), 4)

    bodies = [eqn.params["jaxpr"] for eqn in jaxpr.eqns if "jaxpr" in eqn.params]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]


def test_no_constants_are_added():
    def fun(x):
        return lax.scan(lambda c, _: (jax.checkpoint(in_branches)(c), None), x, length=2)[0]

    jaxpr = jax.make_jaxpr(supported(fun, "i", N), axis_env=[("i", N)])(rows()[0])

    assert jaxpr.consts == []
