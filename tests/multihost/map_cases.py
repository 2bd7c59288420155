"""Cases of maps over all processes; run by test_map_over_processes.py."""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rows import ALL, HERE, LOCAL, MINE, OWN, PROCESSES, TOTAL, assert_rows, pointers

import pmapx

share = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
SHARED = ALL + ALL.sum(0)


def local_mesh(devices=None):
    return Mesh(np.array(devices or jax.local_devices()), ("r",))


def reversed_rows():
    mesh = local_mesh(jax.local_devices()[::-1])
    return jax.device_put(MINE, NamedSharding(mesh, P("r")))


def case_each_process_passes_and_gets_its_rows():
    assert_rows(share(MINE), SHARED[OWN])


def case_results_go_back_in():
    assert_rows(share(share(MINE)), (SHARED + SHARED.sum(0))[OWN])


def case_many_leaves_in_a_tree():
    tree = {"a": MINE, "b": [MINE * 2, (MINE * 3,)]}
    result = pmapx.pmap(lambda t: jax.tree.map(lambda x: lax.pmean(x, "i"), t), "i")(tree)
    wanted = np.broadcast_to(ALL.mean(0), MINE.shape)
    jax.tree.map(lambda r, k: assert_rows(r, k * wanted), result, {"a": 1, "b": [2, (3,)]})


def case_the_axis_counts_all_processes():
    mapped = pmapx.pmap(lambda x: (lax.axis_index("i"), lax.axis_size("i")), "i")
    index, size = mapped(MINE)
    assert_rows(index, np.arange(TOTAL)[OWN])
    assert_rows(size, [TOTAL] * LOCAL)


def case_collectives_span_the_processes():
    def body(x):
        return (
            lax.all_gather(x, "i"),
            lax.ppermute(x, "i", [(k, (k + 1) % TOTAL) for k in range(TOTAL)]),
            lax.pmax(x, "i"),
            lax.all_to_all(jnp.tile(x[:1], TOTAL), "i", 0, 0),
        )

    gathered, permuted, largest, exchanged = pmapx.pmap(body, "i")(MINE)
    assert_rows(gathered, np.broadcast_to(ALL, (LOCAL, *ALL.shape)))
    assert_rows(permuted, np.roll(ALL, 1, axis=0)[OWN])
    assert_rows(largest, np.broadcast_to(ALL.max(0), MINE.shape))
    assert_rows(exchanged, np.broadcast_to(ALL[:, 0], (LOCAL, TOTAL)))


def case_in_axes_and_out_axes_at_inner_and_negative_axes():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", in_axes=1, out_axes=-1)
    assert_rows(mapped(MINE.T), SHARED[OWN].T)


def case_an_argument_that_every_device_sees_whole():
    mapped = pmapx.pmap(lambda w, x: w * x, in_axes=(None, 0))
    assert_rows(mapped(np.float32(3), MINE), 3 * MINE)
    assert_rows(mapped(3.0, MINE), 3 * MINE)
    assert_rows(mapped(jax.device_put(jnp.float32(3), jax.local_devices()[-1]), MINE), 3 * MINE)


def case_an_output_that_is_equal_everywhere():
    mapped = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", out_axes=None)
    assert_rows(mapped(MINE), ALL.sum(0))


def case_outputs_that_are_proven_equal_everywhere():
    mapped = pmapx.pmap(lambda x: (x, lax.psum(x, "i")), "i", out_axes=pmapx.AUTO)
    for _ in range(3):
        rows, total = mapped(MINE)
        assert_rows(rows, MINE)
        assert_rows(total, ALL.sum(0))
    assert mapped.cache_info().compiles == 1


def case_lowered_with_outputs_that_are_proven_equal_everywhere():
    mapped = pmapx.pmap(lambda x: (x, lax.psum(x, "i")), "i", out_axes=pmapx.AUTO)
    lowered = mapped.lower(MINE)
    assert [info.shape for info in lowered.out_info] == [MINE.shape, ALL.sum(0).shape]
    rows, total = lowered.compile()(MINE)
    assert_rows(rows, MINE)
    assert_rows(total, ALL.sum(0))


def case_keyword_and_static_arguments():
    def body(x, power, *, y):
        return x**power + y

    mapped = pmapx.pmap(body, static_broadcasted_argnums=1)
    assert_rows(mapped(MINE, 2, y=MINE), MINE**2 + MINE)
    assert_rows(mapped(MINE, 3, y=MINE), MINE**3 + MINE)


def case_typed_keys():
    keys = jax.random.split(jax.random.key(7), TOTAL)
    drawn = pmapx.pmap(jax.random.normal)(keys[OWN])
    assert_rows(drawn, jax.vmap(jax.random.normal)(keys)[OWN])
    folded = pmapx.pmap(lambda k: jax.random.fold_in(k, lax.axis_index("i")), "i")(keys[OWN])
    wanted = jax.vmap(jax.random.fold_in)(keys, jnp.arange(TOTAL))[OWN]
    assert jnp.issubdtype(folded.dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(jax.random.key_data(folded), jax.random.key_data(wanted))


def case_keys_of_the_old_kind_and_float0():
    keys = jax.random.split(jax.random.PRNGKey(7), TOTAL)
    assert_rows(pmapx.pmap(jax.random.normal)(keys[OWN]), jax.vmap(jax.random.normal)(keys)[OWN])
    nothing = pmapx.pmap(lambda x: x)(np.zeros((LOCAL, 3), jax.dtypes.float0))
    assert nothing.shape == (LOCAL, 3)


def case_fewer_rows_than_devices():
    assert_rows(share(MINE[:1]), MINE[:1] + ALL[::LOCAL].sum(0))


def case_axis_size_is_the_global_size():
    mapped = pmapx.pmap(lambda: lax.axis_index("i"), "i", axis_size=TOTAL)
    assert_rows(mapped(), np.arange(TOTAL)[OWN])
    assert_rows(pmapx.pmap(lambda x: -x, axis_size=TOTAL)(MINE), -MINE)


def case_devices_of_this_process_alone():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", devices=jax.local_devices())
    assert_rows(mapped(MINE), MINE + MINE.sum(0))


def case_some_devices_of_each_process():
    some = [jax.local_devices(process)[-1] for process in range(PROCESSES)]
    mapped = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", devices=some)
    result = mapped(MINE[:1])
    assert_rows(result, ALL[::LOCAL].sum(0)[None])
    assert result.devices() == {jax.local_devices()[-1]}


def case_devices_in_an_order_of_their_own():
    woven = [jax.local_devices(p)[k] for k in range(LOCAL) for p in range(PROCESSES)]
    mapped = pmapx.pmap(lambda x: (lax.axis_index("i"), x), "i", devices=woven)
    index, rows = mapped(MINE)
    assert_rows(index, [woven.index(device) for device in jax.local_devices()])
    assert_rows(rows, MINE)


def case_a_pmap_of_a_pmap():
    body = lambda x: (x + lax.psum(x, ("i", "j")), lax.axis_index("i"), lax.axis_index("j"))
    both, outer, inner = pmapx.pmap(pmapx.pmap(body, "j"), "i")(MINE[None])
    assert_rows(both, SHARED[OWN][None])
    assert_rows(outer, np.full((1, LOCAL), HERE))
    assert_rows(inner, np.arange(LOCAL)[None])


def case_a_pmap_met_inside():
    def outer(x):
        return pmapx.pmap(lambda y: y + lax.psum(y, ("i", "j")), "j")(2 * x) + 1

    assert_rows(pmapx.pmap(outer, "i")(MINE[None]), (2 * SHARED[OWN] + 1)[None])


def case_more_elements_than_devices():
    twice = np.concatenate([ALL, ALL + 100])
    own = twice[2 * HERE * LOCAL : 2 * (HERE + 1) * LOCAL]
    body = lambda x: x + lax.psum(x, "i") + lax.axis_index("i")
    mapped = pmapx.pmap(body, "i", oversubscribe=True)
    index = np.arange(2 * TOTAL)[2 * HERE * LOCAL : 2 * (HERE + 1) * LOCAL, None]
    assert_rows(mapped(own), own + twice.sum(0) + index)


def case_inputs_wherever_they_lie_in_this_process():
    for x in [
        jnp.asarray(MINE),
        jax.device_put(MINE, jax.local_devices()[-1]),
        reversed_rows(),
        jax.device_put(MINE, NamedSharding(local_mesh(), P())),
        jax.device_put(MINE, NamedSharding(local_mesh(), P("r"))),
    ]:
        assert_rows(share(x), SHARED[OWN])
    with jax.set_mesh(local_mesh()):
        assert_rows(share(MINE), SHARED[OWN])


def case_one_trace_and_one_compile_for_all_placements():
    mapped = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")
    for x in [MINE, jnp.asarray(MINE), reversed_rows(), mapped(MINE), share(MINE)]:
        mapped(x)
    info = mapped.cache_info()
    assert (info.traces, info.compiles, info.calls) == (1, 1, 6)
    assert [move.argument for move in info.moved] == ["argument 0 'x'"] * (LOCAL > 1)


def case_global_arrays_are_used_as_they_are():
    everywhere = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", view="global")
    whole = everywhere(MINE)
    assert whole.shape == ALL.shape
    assert not whole.is_fully_addressable
    held = np.concatenate([shard.data for shard in whole.addressable_shards])
    np.testing.assert_allclose(held, SHARED[OWN])
    assert everywhere(whole).shape == ALL.shape
    assert_rows(share(whole), (SHARED + SHARED.sum(0))[OWN])
    both = pmapx.pmap(lambda x, y: x + y)(whole, MINE)
    assert_rows(both, (SHARED + ALL)[OWN])
    assert share.cache_info().compiles == share.cache_info().traces


def case_global_arrays_split_another_way_are_moved():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    replicated = jax.device_put(ALL, NamedSharding(mesh, P()))
    assert_rows(share(replicated), SHARED[OWN])


def case_lowered_and_compiled_in_host_local_terms():
    mapped = pmapx.pmap(lambda w, x: w * x + lax.psum(x, "i"), "i", in_axes=(None, 0))
    lowered = mapped.lower(2.0, MINE)
    assert lowered.out_info.shape == MINE.shape
    assert "all_reduce" in lowered.as_text() or "all-reduce" in lowered.as_text()
    compiled = lowered.compile()
    assert_rows(compiled(2.0, MINE), 2 * MINE + ALL.sum(0))
    assert_rows(compiled(2.0, compiled(2.0, MINE) * 0 + MINE), 2 * MINE + ALL.sum(0))
    assert_rows(compiled(2.0, reversed_rows()), 2 * MINE + ALL.sum(0))
    assert compiled.cost_analysis() is not None
    assert "all-reduce" in compiled.as_text()
    assert mapped.eval_shape(2.0, MINE).shape == MINE.shape
    from_shapes = mapped.lower(
        jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct(MINE.shape, np.float32)
    ).compile()
    assert_rows(from_shapes(np.float32(2), MINE), 2 * MINE + ALL.sum(0))
    with pytest.raises(TypeError, match="argument 1 'x'"):
        compiled(2.0, MINE[:, :2])


def case_a_donated_input_in_its_place_is_reused():
    step = pmapx.pmap(lambda x: x + 1, donate_argnums=0)
    x = step(MINE)
    y = step(x)
    before = pointers(y)
    z = step(y)
    assert x.is_deleted()
    assert y.is_deleted()
    assert pointers(z) == before
    assert_rows(z, MINE + 3)


def case_a_donated_input_that_must_move_is_freed_and_named():
    step = pmapx.pmap(lambda state: state["w"] + 1, donate_argnums=0)
    x = reversed_rows()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = step({"w": x})
    assert_rows(result, MINE + 1)
    assert x.is_deleted()
    assert [w.message.code for w in warned] == ["PMX911"]
    assert "argument 0 'state' at ['w']" in str(warned[0].message)


def case_jit_sees_global_arrays():
    everywhere = pmapx.pmap(lambda x: -x, view="global")(MINE)
    result = jax.jit(share)(everywhere)
    held = np.concatenate([shard.data for shard in result.addressable_shards])
    np.testing.assert_allclose(held, -SHARED[OWN])


def case_a_gradient_inside_the_map():
    def loss(w, x):
        return jnp.sum((w * x) ** 2)

    step = pmapx.pmap(lambda w, x: lax.psum(jax.grad(loss)(w, x), "i"), "i", in_axes=(None, 0))
    assert_rows(step(np.float32(2), MINE), np.full(LOCAL, 4 * (ALL**2).sum()))


def case_results_keep_weak_types():
    if os.environ.get("PMAPX_PUBLIC_ONLY"):
        return  # Public JAX cannot make such an array of what devices hold.
    mapped = pmapx.pmap(lambda x: (x, 1.0, x * 2), out_axes=(0, None, 0))
    for _ in range(3):  # As the first call, the dispatch, and what is fed back give them.
        rows, number, doubled = mapped(MINE)
        assert (rows.weak_type, number.weak_type, doubled.weak_type) == (False, True, False)
    assert (number + np.float16(1)).dtype == np.float16
    assert_rows(pmapx.pmap(lambda x, n: x * n, in_axes=(0, None))(MINE, number), MINE)
    counted = pmapx.pmap(lambda n, x: (n + 1, x), in_axes=(None, 0), out_axes=(None, 0))
    n = 0
    for _ in range(3):
        n, _ = counted(n, MINE)
    assert counted.cache_info().compiles == 1
    assert n == 3


WEIGHTS = np.array([0.1, 0.2, 0.3], np.float32)


def waves(w, x):
    y = jnp.sin(w * x)
    return y * lax.psum(y.sum(), "i"), lax.pmean(x * w, "i")


mapped_waves = pmapx.pmap(waves, "i", in_axes=(None, 0), out_axes=(0, None))
# The same over the rows of all processes, in this one.
all_waves = jax.vmap(waves, axis_name="i", in_axes=(None, 0), out_axes=(0, None))


def squares(waves):
    """A loss of rows and of a value that all have; what a process adds is the loss of its rows."""

    def loss(w, x):
        rows, mean = waves(w, x)
        return (rows**2).sum() + (mean**2).sum()

    return loss


def case_gradients_from_outside_span_the_processes():
    of_weights, of_rows = jax.grad(squares(mapped_waves), (0, 1))(WEIGHTS, MINE)
    wanted = jax.grad(squares(all_waves), (0, 1))(WEIGHTS, ALL)
    np.testing.assert_allclose(of_weights, wanted[0], rtol=1e-4)
    np.testing.assert_allclose(of_rows, wanted[1][OWN], rtol=1e-4)
    assert of_rows.is_fully_addressable


def case_tangents_from_outside():
    tangents = np.ones_like(WEIGHTS), 2 * MINE
    result, tangent = jax.jvp(mapped_waves, (WEIGHTS, MINE), tangents)
    wanted, wanted_tangent = jax.jvp(all_waves, (WEIGHTS, ALL), (tangents[0], 2 * ALL))
    for found, all_rows in zip([*result, *tangent], [*wanted, *wanted_tangent], strict=True):
        mine = all_rows[OWN] if all_rows.ndim == 2 else all_rows
        np.testing.assert_allclose(found, mine, rtol=1e-4, atol=1e-4)


def case_batches_from_outside():
    several = np.stack([WEIGHTS, 2 * WEIGHTS])
    rows, mean = jax.vmap(mapped_waves, in_axes=(0, None), out_axes=(1, 0))(several, MINE)
    wanted, wanted_mean = jax.vmap(all_waves, in_axes=(0, None), out_axes=(1, 0))(several, ALL)
    np.testing.assert_allclose(rows, wanted[OWN], rtol=1e-4)
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-4)
    stacked = np.stack([MINE, MINE + 1], 2)
    rows, _ = jax.vmap(mapped_waves, in_axes=(None, 2))(WEIGHTS, stacked)
    wanted, _ = jax.vmap(all_waves, in_axes=(None, 2))(WEIGHTS, np.stack([ALL, ALL + 1], 2))
    np.testing.assert_allclose(rows, wanted[:, OWN], rtol=1e-4)


def case_transformations_of_transformations():
    several = np.stack([WEIGHTS, 2 * WEIGHTS])
    for transform in (
        lambda loss, x: jax.vmap(jax.grad(loss), in_axes=(0, None))(several, x),
        lambda loss, x: jax.grad(lambda w: jax.vmap(loss, (0, None))(w, x).sum())(several),
        lambda loss, x: jax.hessian(loss)(WEIGHTS, x),
    ):
        found, wanted = transform(squares(mapped_waves), MINE), transform(squares(all_waves), ALL)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)


def case_an_output_that_the_loss_does_not_use():
    for used in (0, 1):
        found = jax.grad(lambda w: mapped_waves(w, MINE)[used].sum())(WEIGHTS)
        wanted = jax.grad(lambda w: all_waves(w, ALL)[used].sum())(WEIGHTS)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def case_gradients_of_trees_with_integers_and_keywords():
    def scaled(tree, *, times):
        return tree["x"] * times + tree["n"]

    mapped = pmapx.pmap(scaled)
    tree = {"x": MINE, "n": np.arange(LOCAL)}
    found = jax.grad(lambda tree: mapped(tree, times=MINE).sum(), allow_int=True)(tree)
    np.testing.assert_allclose(found["x"], MINE)
    assert found["n"].dtype == jax.dtypes.float0


def case_gradients_of_global_arrays():
    everywhere = pmapx.pmap(lambda x: x + 0, view="global")(MINE)
    mapped = pmapx.pmap(lambda x: x * lax.psum(x.sum(), "i"), "i", view="global")
    found = jax.grad(lambda x: mapped(x).sum())(everywhere)
    held = np.concatenate([shard.data for shard in found.addressable_shards])
    np.testing.assert_allclose(held, np.full(MINE.shape, 2 * ALL.sum()), rtol=1e-5)


def case_what_cannot_work_says_so():
    mistakes = {
        "PMX101": lambda: pmapx.pmap(lambda x, y: x)(MINE, np.concatenate([MINE, MINE])),
        "PMX201": lambda: share(np.concatenate([MINE, MINE])),
        "PMX402": lambda: pmapx.pmap(
            lambda x: x, devices=jax.local_devices((HERE + 1) % PROCESSES)
        )(MINE),
        "PMX403": lambda: pmapx.pmap(
            pmapx.pmap(lambda x: x, "j"),
            "i",
            devices=[jax.local_devices(p)[k] for k in range(LOCAL) for p in range(PROCESSES)],
        )(MINE[None]),
        "PMX404": lambda: pmapx.pmap(lambda x: x, axis_size=TOTAL)(MINE[:1]),
    }
    if LOCAL == 1:
        del mistakes["PMX403"], mistakes["PMX404"]  # A row has one device, a process one row.
    for code, make in mistakes.items():
        with pytest.raises(pmapx.PmapxError, match=code):
            make()


def case_disable_jit_and_debug_nans():
    with jax.disable_jit():
        assert_rows(share(MINE), SHARED[OWN])
    with jax.debug_nans(True):
        assert_rows(share(MINE), SHARED[OWN])
