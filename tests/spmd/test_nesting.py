"""A pmap inside a pmap, and beside `shard_map` (D1-D4): one mesh, one program."""

import re
import traceback
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same, by_vmap
from program_counts import counting

N = jax.device_count()
OUTER, INNER = (N // 2, 2) if N % 2 == 0 else (N, 1)
X = jnp.arange(3.0 * N).reshape(OUTER, INNER, 3)


def nested(fun):
    return pmapx.pmap(pmapx.pmap(fun, "j"), "i")


def nested_by_vmap(fun):
    return by_vmap(by_vmap(fun, "j"), "i")


BODIES = {
    "no collective": lambda x: jnp.maximum(2 * x, 5),
    "over i": lambda x: x + lax.psum(x, "i"),
    "over j": lambda x: x + lax.psum(x, "j"),
    "over both": lambda x: x + lax.psum(x, ("i", "j")),
    "over each in turn": lambda x: lax.psum(lax.psum(x, "j") + x, "i"),
    "maximum and minimum": lambda x: lax.pmax(lax.pmin(x, "j"), "i"),
    "gather over i": lambda x: lax.all_gather(x, "i").sum(0),
    "gather over j": lambda x: lax.all_gather(x, "j").sum(0),
    "indices": lambda x: x + 10 * lax.axis_index("i") + lax.axis_index("j"),
    "rotate i": lambda x: lax.ppermute(x, "i", [(k, (k + 1) % OUTER) for k in range(OUTER)]),
    "rotate j": lambda x: lax.ppermute(x, "j", [(k, (k + 1) % INNER) for k in range(INNER)]),
}


@pytest.fixture(params=BODIES.values(), ids=BODIES.keys())
def body(request):
    return request.param


@pytest.mark.behaviour("D1")
def test_collectives_over_the_outer_the_inner_and_both_axes(body):
    assert_same(nested(body)(X), nested_by_vmap(body)(X))


@pytest.mark.behaviour("D1")
@pytest.mark.parametrize("name", [name for name in BODIES if name != "maximum and minimum"])
def test_gradients_through_both_maps(name):
    body = BODIES[name]

    def loss(mapped):
        return lambda x: (mapped(x) ** 2).sum()

    assert_same(jax.grad(loss(nested(body)))(X), jax.grad(loss(nested_by_vmap(body)))(X))


@pytest.mark.behaviour("D1")
def test_a_gather_over_both_axes_at_once():
    gathered = nested(lambda x: lax.all_gather(x, ("i", "j"), tiled=False))(X)

    assert_same(gathered, jnp.broadcast_to(X.reshape(N, 3), (OUTER, INNER, N, 3)))


@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
def test_groups_of_either_axis():
    def fun(x):
        rows = lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])
        columns = lax.psum(x, "j", axis_index_groups=[[0], [1]])
        return rows, columns

    in_pairs = X.reshape(2, 2, INNER, 3).sum(1).repeat(2, axis=0)

    assert_same(nested(fun)(X), (in_pairs, X))


@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
def test_a_permutation_of_some_elements_only():
    result = nested(lambda x: lax.ppermute(x, "i", [(0, 1)]))(X)

    assert_same(result, jnp.zeros_like(X).at[1].set(X[0]))


@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(2)
def test_every_inner_element_has_a_device_of_its_own(devices):
    result = nested(lambda x: x + 1)(X)

    assert result.sharding.device_set == set(devices)


@pytest.mark.behaviour("D1")
def test_it_is_traced_and_compiled_as_one_program():
    def innermost_body(x):
        return x + lax.psum(x, ("i", "j"))

    mapped = nested(innermost_body)
    with counting() as counts:
        first = mapped(X)
        mapped(first)
        mapped(jax.device_put(X, jax.devices()[-1]))

    assert sum("innermost_body" in name for name in counts.compiled) == 1
    assert mapped.cache_info().compiles == 1
    with counting() as counts:
        mapped(first)
    assert counts.traced == counts.compiled == []


COLLECTIVE = re.compile(
    r" = \S+.* (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(compiled):
    """The collectives of a program, each with the groups of devices that it joins."""
    found = Counter()
    for line in compiled.as_text().splitlines():
        if match := COLLECTIVE.search(line):
            groups = re.search(r"(replica_groups|source_target_pairs)=(\S+?),? ", line + " ")
            found[match.group(1), groups and groups.group(2)] += 1
    return found


def kinds(found):
    totals = Counter()
    for (kind, _), count in found.items():
        totals[kind] += count
    return totals


def by_hand(body, devices):
    """The same as a 2-D `shard_map` written by hand."""
    mesh = Mesh(np.array(devices).reshape(OUTER, INNER), ("i", "j"))
    return jax.jit(
        jax.shard_map(
            lambda x: body(x[0, 0])[None, None],
            mesh=mesh,
            in_specs=P("i", "j"),
            out_specs=P("i", "j"),
            check_vma=False,
        )
    )


@pytest.mark.no_context_mesh("its own shard_map is over another mesh")
@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
def test_no_collective_that_a_hand_written_shard_map_has_not(body, devices):
    ours = collectives(nested(body).lower(X).compile())
    theirs = collectives(by_hand(body, devices).lower(X).compile())

    assert kinds(ours) <= kinds(theirs), f"{ours}\nagainst\n{theirs}"


@pytest.mark.no_context_mesh("its own shard_map is over another mesh")
@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
def test_no_collective_in_a_training_step_that_a_hand_written_one_has_not(devices):
    def step(x):
        gradient = jax.grad(lambda w: ((w * x) ** 2).sum())(jnp.float32(1))
        return x - lax.pmean(lax.psum(gradient, "j"), "i")

    ours = collectives(nested(step).lower(X).compile())
    theirs = collectives(by_hand(step, devices).lower(X).compile())

    assert kinds(ours) <= kinds(theirs)
    np.testing.assert_allclose(nested(step)(X), by_hand(step, devices)(X), rtol=1e-6)


@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
def test_a_sum_over_both_axes_is_one_all_reduce():
    compiled = nested(lambda x: lax.psum(x, ("i", "j"))).lower(X).compile()

    assert kinds(collectives(compiled)) == {"all-reduce": 1}


@pytest.mark.behaviour("D1")
def test_axes_of_both_maps_may_be_inner_negative_or_none():
    def fun(x, w, y):
        return x * w + y, lax.psum(x, ("i", "j"))

    def through(transform):
        inner = transform(fun, "j", in_axes=(-1, None, 0), out_axes=(-1, None))
        return transform(inner, "i", in_axes=(1, None, -1), out_axes=(0, None))

    args = (
        jnp.arange(3.0 * N).reshape(3, OUTER, INNER),
        jnp.arange(3.0),
        jnp.arange(float(N)).reshape(INNER, OUTER),
    )

    assert_same(through(pmapx.pmap)(*args), through(by_vmap)(*args))


@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(2)
def test_the_outer_devices_are_shared_out_in_order(devices):
    order = devices[::-1]

    result = pmapx.pmap(pmapx.pmap(lambda x: x + 1, "j"), "i", devices=order)(X)

    assert result.sharding.device_set == set(order)
    assert_same(result, X + 1)


@pytest.mark.behaviour("D1")
def test_an_inner_axis_of_the_same_name_hides_the_outer_one():
    mapped = pmapx.pmap(pmapx.pmap(lambda x: lax.psum(x, "i"), "i"), "i")

    assert_same(mapped(X), jnp.broadcast_to(X.sum(1, keepdims=True), X.shape))


@pytest.mark.behaviour("D1")
def test_the_body_may_use_what_is_around_the_inner_pmap():
    def outer(x, scale):
        total = lax.psum(x.sum(), "i")
        return pmapx.pmap(lambda y: y * scale + total + lax.psum(scale, "j"), "j")(x)

    def wanted(x, scale):
        total = lax.psum(x.sum(), "i")
        return by_vmap(lambda y: y * scale + total + lax.psum(scale, "j"), "j")(x)

    scale = jnp.arange(float(OUTER))

    assert_same(pmapx.pmap(outer, "i")(X, scale), by_vmap(wanted, "i")(X, scale))


@pytest.mark.behaviour("D2")
def test_three_deep():
    sizes = (2, 2, 2) if N == 8 else (1, 1, N)

    def fun(x):
        return (
            lax.psum(x, "k"),
            lax.psum(x, ("i", "k")),
            lax.psum(x, ("i", "j", "k")),
            x + lax.axis_index("i") * 100 + lax.axis_index("j") * 10 + lax.axis_index("k"),
        )

    def through(transform):
        return transform(transform(transform(fun, "k"), "j"), "i")

    x = jnp.arange(float(N)).reshape(sizes)

    assert_same(through(pmapx.pmap)(x), through(by_vmap)(x))


@pytest.mark.behaviour("D2")
@pytest.mark.needs_devices(2)
def test_one_function_takes_inner_sizes_that_differ_by_call():
    def fun(x):
        return x + lax.psum(x, ("i", "j"))

    mapped = nested(fun)
    for sizes in [(1, N), (N, 1), (N // 2, 2), (1, 1), (1, N)]:
        x = jnp.arange(float(np.prod(sizes))).reshape(sizes)
        assert_same(mapped(x), nested_by_vmap(fun)(x))


@pytest.mark.behaviour("D2")
@pytest.mark.needs_devices(8)
@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4), (3, 2), (4, 1), (3, 3)])
def test_two_inner_maps_of_different_size_in_one_body(first, second):
    def through(transform):
        def outer(x):
            a = transform(lambda y: lax.psum(y, ("i", "j")), "j")(x[:first])
            b = transform(lambda y: y + lax.psum(y, "k"), "k")(x[:second])
            return a, b

        return transform(outer, "i")

    x = jnp.arange(8.0).reshape(2, 4)

    assert_same(through(pmapx.pmap)(x), through(by_vmap)(x))


OVER_BOTH = {
    "all_gather": lambda y: lax.all_gather(y, ("i", "j")),
    "all_gather tiled": lambda y: lax.all_gather(y[None], ("j", "i"), tiled=True),
    "psum_scatter": lambda y: lax.psum_scatter(y * jnp.arange(8.0), ("i", "j")),
    "ppermute": lambda y: lax.ppermute(y, ("i", "j"), [(0, 7), (3, 1)]),
}


# Before JAX 0.10 such pmaps run as a batch, which has no collectives over both axes but psum.
needs_nested_shard_maps = pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="pmaps met inside run as a batch before JAX 0.10"
)


@needs_nested_shard_maps
@pytest.mark.behaviour("D2")
@pytest.mark.needs_devices(8)
@pytest.mark.no_context_mesh("in a jit, pmaps met inside run as a batch")
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["called", "inside jit"])
@pytest.mark.parametrize("collective", OVER_BOTH.values(), ids=OVER_BOTH)
def test_a_collective_over_both_axes_of_a_pmap_met_inside(collective, wrap):
    inner = pmapx.pmap(collective, "j")
    x = jnp.arange(8.0).reshape(2, 4)

    assert_same(wrap(pmapx.pmap(lambda x: inner(x), "i"))(x), pmapx.pmap(inner, "i")(x))


@needs_nested_shard_maps
@pytest.mark.behaviour("D1")
@pytest.mark.needs_devices(8)
@pytest.mark.no_context_mesh("a jit has the devices of the mesh")
def test_a_pmap_met_inside_another_in_a_jit_has_devices_of_its_own():
    inner = pmapx.pmap(lambda y: lax.psum(y, ("i", "j")), "j")
    jitted = jax.jit(pmapx.pmap(lambda x: inner(x), "i"))
    x = jnp.arange(8.0).reshape(2, 4)

    compiled = jitted.lower(x).compile()

    assert len(jitted(x).sharding.device_set) == 8
    assert compiled.as_text().count(" all-reduce(") == 1


@pytest.mark.behaviour("B2")
@pytest.mark.needs_devices(8)
def test_a_committed_input_of_pmaps_met_inside_is_moved_and_counted_each_time(devices):
    def through(transform):
        def outer(x):
            return transform(lambda y: lax.psum(y, ("i", "j")), "j")(x[:3])

        return transform(outer, "i")

    x = jnp.arange(8.0).reshape(2, 4)
    mapped = through(pmapx.pmap)

    for _ in range(3):
        assert_same(mapped(jax.device_put(x, devices[3])), through(by_vmap)(x))
    assert [move.count for move in mapped.cache_info().moved] == [3]


SURROUNDINGS = {
    "vmap": lambda f: jax.vmap(f, in_axes=1, out_axes=1),
    "vmap with a name": lambda f: jax.vmap(f, in_axes=-1, out_axes=0, axis_name="v"),
    "scan": lambda f: lambda x: lax.scan(lambda c, k: (f(c) + k, c), x, jnp.arange(2.0)),
    "grad": lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (2 * x,)),
    "jit": jax.jit,
    "remat": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
    "cond": lambda f: lambda x: lax.cond(lax.axis_index("i") >= 0, f, lambda x: -x, x),
    "while": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, x: f(x), x),
}


@pytest.mark.behaviour("D2")
@pytest.mark.parametrize("around", SURROUNDINGS.values(), ids=SURROUNDINGS.keys())
def test_an_inner_pmap_under_another_transformation(around):
    def fun(y):
        return y * y % 7 + lax.psum(y, ("i", "j"))

    def smooth(y):
        return y * y + lax.psum(y, ("i", "j"))

    fun = smooth if around in (SURROUNDINGS["grad"], SURROUNDINGS["jvp"]) else fun

    def through(transform):
        return transform(around(transform(fun, "j")), "i")

    assert_same(through(pmapx.pmap)(X), through(by_vmap)(X))


@pytest.mark.behaviour("D2")
@pytest.mark.parametrize("around", ["jit", "grad", "jvp", "remat"])
def test_nested_pmaps_under_another_transformation(around):
    def fun(y):
        return y * y + lax.psum(y, ("i", "j"))

    transform = SURROUNDINGS[around]

    assert_same(transform(nested(fun))(X), transform(nested_by_vmap(fun))(X))


@pytest.mark.behaviour("D2")
def test_vmap_outside_of_nested_pmaps():
    def fun(y):
        return y * y + lax.psum(y, ("i", "j"))

    batch = jnp.stack([X, -X])

    assert_same(jax.vmap(nested(fun))(batch), jax.vmap(nested_by_vmap(fun))(batch))


@pytest.mark.behaviour("D2")
def test_an_inner_map_with_an_axis_size_and_no_mapped_argument():
    def through(transform):
        def outer(x):
            return transform(lambda: x + lax.axis_index("j"), "j", axis_size=INNER)()

        return transform(outer, "i")

    x = jnp.arange(float(OUTER))

    assert_same(through(pmapx.pmap)(x), through(by_vmap)(x))


@pytest.mark.behaviour("D2")
def test_static_arguments_of_the_inner_map():
    inner = pmapx.pmap(lambda y, k: y * k, "j", static_broadcasted_argnums=1)

    assert_same(pmapx.pmap(lambda x: inner(x, 3), "i")(X), 3 * X)


@pytest.mark.behaviour("D2")
def test_an_inner_output_without_an_axis():
    def through(transform):
        def outer(x):
            return transform(lambda y: lax.psum(y * y, ("i", "j")), "j", out_axes=None)(x)

        return transform(outer, "i", out_axes=None)

    total = lambda mapped: lambda x: mapped(x).sum()

    assert_same(through(pmapx.pmap)(X), through(by_vmap)(X))
    assert_same(jax.grad(total(through(pmapx.pmap)))(X), jax.grad(total(through(by_vmap)))(X))


@pytest.mark.behaviour("D2")
def test_keys_go_through_both_maps():
    keys = jax.random.split(jax.random.key(0), (OUTER, INNER))

    assert_same(nested(jax.random.bits)(keys), nested_by_vmap(jax.random.bits)(keys))


@pytest.mark.behaviour("D2")
@pytest.mark.parametrize("sizes", [(2 * N, 2), (N, 3)])
def test_an_outer_map_that_oversubscribes_takes_the_inner_one_along(sizes):
    def fun(y):
        return y + lax.psum(y, ("i", "j")) * lax.axis_index("j")

    x = jnp.arange(float(np.prod(sizes))).reshape(sizes)
    mapped = pmapx.pmap(pmapx.pmap(fun, "j"), "i", oversubscribe=True)

    assert_same(mapped(x), nested_by_vmap(fun)(x))


@pytest.mark.behaviour("D2")
def test_an_inner_pmap_works_in_a_body_that_catches_all_exceptions():
    def outer(x):
        try:
            return pmapx.pmap(lambda y: y + 1, "j")(x)
        except BaseException:
            return x

    assert_same(pmapx.pmap(outer, "i")(X), X + 1)


@pytest.mark.behaviour("D2")
def test_a_donated_input_of_nested_pmaps_is_deleted(devices):
    mesh = Mesh(np.array(devices).reshape(OUTER, INNER), ("a", "b"))
    x = jax.device_put(np.array(X), NamedSharding(mesh, P("a", "b")))

    result = pmapx.pmap(pmapx.pmap(lambda y: y + 1, "j"), "i", donate_argnums=0)(x)

    assert x.is_deleted()
    assert_same(result, X + 1)


@pytest.mark.behaviour("D2")
@pytest.mark.needs_devices(8)
def test_nested_maps_may_leave_devices_idle(devices):
    x = jnp.arange(6.0).reshape(3, 2)

    result = pmapx.pmap(pmapx.pmap(lambda y: y + lax.psum(y, ("i", "j")), "j"), "i")(x)

    assert result.sharding.device_set == set(devices[:6])
    assert_same(result, x + x.sum())


@pytest.mark.behaviour("D3")
def test_too_large_a_product_tells_the_nesting():
    with pytest.raises(ValueError, match="PMX202") as raised:
        pmapx.pmap(pmapx.pmap(lambda x: x, "inner"), "outer")(jnp.zeros((N, 3)))

    text = str(raised.value)
    assert f"requires {3 * N}" in text
    assert text.index("'outer'") < text.index("'inner'")
    assert str(N) in text


@pytest.mark.behaviour("D3")
def test_too_large_a_product_three_deep():
    mapped = pmapx.pmap(pmapx.pmap(pmapx.pmap(lambda x: x, "c"), "b"), "a")

    with pytest.raises(ValueError, match="PMX202") as raised:
        mapped(jnp.zeros((N, 2, 2)))

    assert all(f"'{name}'" in str(raised.value) for name in "abc")


@pytest.mark.behaviour("D3")
def test_a_product_too_large_leaves_the_function_usable():
    mapped = nested(lambda x: x + lax.psum(x, "j"))

    with pytest.raises(pmapx.PmapxError):
        mapped(jnp.zeros((N, 2)))

    assert_same(mapped(X), nested_by_vmap(lambda x: x + lax.psum(x, "j"))(X))


@pytest.mark.behaviour("D3")
def test_an_error_in_the_inner_arguments_names_the_inner_function():
    def inner_step(a, b):
        return a

    def outer(x):
        return pmapx.pmap(inner_step, "j")(x, x[0])

    with pytest.raises(ValueError, match="inner_step") as raised:
        pmapx.pmap(outer, "i")(jnp.zeros((1, 1, 3)))

    assert "argument 1 'b'" in str(raised.value)


def mesh_of(devices, names):
    return Mesh(np.array(devices).reshape(OUTER, INNER), names)


@pytest.mark.no_context_mesh("its own shard_map is over another mesh")
@pytest.mark.behaviour("D4")
@pytest.mark.parametrize("name", ["b", "i"])
def test_a_pmap_inside_a_shard_map_over_another_axis(name, devices):
    mesh = mesh_of(devices, ("a", "b"))

    def through(transform):
        def body(x):
            mapped = transform(lambda y: y + lax.psum(y, name) + lax.psum(y, "a"), name)
            return mapped(x[0])[None]

        return body

    result = jax.jit(
        jax.shard_map(
            through(pmapx.pmap),
            mesh=mesh,
            in_specs=P("a"),
            out_specs=P("a"),
            axis_names={"a"},
            check_vma=False,
        )
    )(X)

    np.testing.assert_array_equal(result, by_vmap(lambda x: through(by_vmap)(x[None])[0], "a")(X))


@pytest.mark.behaviour("D4")
def test_a_shard_map_inside_a_pmap_over_another_axis(devices):
    mesh = mesh_of(devices, ("i", "m"))

    def body(x):
        inner = jax.shard_map(
            lambda y: y + lax.psum(y, "m") + lax.psum(y, "i"),
            in_specs=P("m"),
            out_specs=P("m"),
            axis_names={"m"},
            check_vma=False,
        )
        return inner(x)

    with jax.set_mesh(mesh):
        result = pmapx.pmap(body, "i")(X)

    wanted = nested_by_vmap_over(("m", "i"))(X)
    np.testing.assert_array_equal(result, wanted)


def nested_by_vmap_over(names):
    inner, outer = names
    return by_vmap(by_vmap(lambda y: y + lax.psum(y, inner) + lax.psum(y, outer), inner), outer)


@pytest.mark.no_context_mesh("its own shard_map is over another mesh")
@pytest.mark.behaviour("D4")
def test_a_shard_map_on_a_mesh_of_its_own_beside_a_pmap(devices):
    mesh = mesh_of(devices, ("a", "b"))
    twice = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))

    result = nested(lambda x: x + 1)(jax.jit(twice)(x))

    assert_same(result, 2 * X + 1)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["called", "inside jit"])
def test_an_error_of_the_body_comes_without_what_finding_inner_pmaps_took(wrap):
    def fun(x):
        pmapx.pmap(lambda y: y + 1, axis_name="j")(x[None])
        raise KeyError("from the user's body")

    with pytest.raises(KeyError, match="from the user's body") as raised:
        wrap(pmapx.pmap(fun))(np.ones(1, np.float32))

    assert "InnerPmapMet" not in "".join(traceback.format_exception(raised.value))
