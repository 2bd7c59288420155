"""Stages, export, donation, compiler options and the persistent cache (G)."""

import re
import warnings

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same
from program_counts import counting

pytestmark = pytest.mark.behaviour("G")

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def step(state, batch):
    """The batch, averaged over all devices, added to the state."""
    return {"state": state["w"] + lax.pmean(batch, "i"), "sum": lax.psum(batch.sum(), "i")}


MAPPED = pmapx.pmap(step, "i", out_axes={"state": 0, "sum": None})
ARGS = ({"w": ROWS}, ROWS)
STRUCTS = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), ARGS)


def row_sharded(value):
    return jax.device_put(value, NamedSharding(Mesh(np.array(jax.devices()), ("r",)), P("r")))


def test_lower_and_compile_give_the_same_result_as_the_call():
    compiled = MAPPED.lower(*ARGS).compile()

    assert_same(compiled(*ARGS), MAPPED(*ARGS))


def test_lower_takes_shapes_in_place_of_arrays():
    assert_same(MAPPED.lower(*STRUCTS).compile()(*ARGS), MAPPED(*ARGS))


def test_a_compiled_stage_takes_placed_arrays_and_its_own_output():
    compiled = MAPPED.lower(*ARGS).compile()

    first = compiled({"w": row_sharded(ROWS)}, row_sharded(ROWS))

    assert_same(compiled({"w": first["state"]}, ROWS), MAPPED({"w": first["state"]}, ROWS))


def test_trace_gives_a_jaxpr_and_lowers():
    traced = MAPPED.trace(*ARGS)

    assert "psum" in str(traced.jaxpr)
    assert_same(traced.lower().compile()(*ARGS), MAPPED(*ARGS))


def test_eval_shape_gives_shapes_and_compiles_nothing():
    with counting() as counts:
        shapes = MAPPED.eval_shape(*STRUCTS)

    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes) == {
        "state": ((N, 4), np.float32),
        "sum": ((), np.float32),
    }
    assert counts.compiled == []


def test_as_text_is_the_program():
    lowered = MAPPED.lower(*ARGS)

    assert "all_reduce" in lowered.as_text() or "all-reduce" in lowered.as_text()
    if N > 1:
        assert "all-reduce" in lowered.compile().as_text()


def test_as_text_in_another_dialect():
    assert "HloModule" in MAPPED.lower(*ARGS).as_text("hlo")
    assert MAPPED.lower(*ARGS).compiler_ir() is not None


def test_cost_analysis_counts_the_work():
    assert MAPPED.lower(*ARGS).compile().cost_analysis()["flops"] > 0


def test_memory_analysis_counts_the_bytes_of_one_device():
    compiled = pmapx.pmap(lambda x: x + 1).lower(ROWS).compile()

    memory = compiled.memory_analysis()

    assert memory.argument_size_in_bytes == memory.output_size_in_bytes == ROWS[0].nbytes


@pytest.mark.parametrize("stage", ["lowered", "compiled"])
def test_out_info_and_args_info_are_in_the_users_terms(stage):
    lowered = MAPPED.lower(*ARGS)
    info = lowered if stage == "lowered" else lowered.compile()

    args, kwargs = info.args_info
    assert jax.tree.map(lambda a: (a.shape, a.donated), args) == (
        {"w": ((N, 4), False)},
        ((N, 4), False),
    )
    assert kwargs == {}
    assert jax.tree.map(lambda s: s.shape, info.out_info) == {"state": (N, 4), "sum": ()}


def test_the_trees_are_the_users():
    lowered = MAPPED.lower(*ARGS)

    assert lowered.in_tree == jax.tree.structure((ARGS, {}))
    assert lowered.out_tree == jax.tree.structure({"state": 0, "sum": 0})
    assert lowered.compile().out_tree == lowered.out_tree


def test_args_info_tells_what_is_donated():
    mapped = pmapx.pmap(lambda a, b: a + b, donate_argnums=1)

    (a, b), _ = mapped.lower(ROWS, ROWS).args_info

    assert (a.donated, b.donated) == (False, True)


def test_shardings_of_a_compiled_stage_are_those_of_the_map():
    compiled = MAPPED.lower(*ARGS).compile()

    (state, batch), _ = compiled.input_shardings
    assert state["w"].shard_shape((N, 4)) == batch.shard_shape((N, 4)) == (1, 4)
    assert compiled.output_shardings["state"].shard_shape((N, 4)) == (1, 4)
    assert compiled.output_shardings["sum"].is_fully_replicated


def test_keyword_and_static_arguments_go_through_the_stages():
    mapped = pmapx.pmap(lambda x, k, *, y: x * k + y, static_broadcasted_argnums=1)

    compiled = mapped.lower(ROWS, 3, y=ROWS).compile()

    assert_same(compiled(ROWS, y=ROWS), jnp.asarray(4 * ROWS))


def test_a_compiled_stage_refuses_other_shapes():
    compiled = MAPPED.lower(*ARGS).compile()

    with pytest.raises(TypeError):
        compiled({"w": ROWS[:, :2]}, ROWS[:, :2])


def test_stages_of_nested_and_oversubscribed_maps():
    nested = pmapx.pmap(pmapx.pmap(lambda x: x + lax.psum(x, "j"), "j"), "i")
    crowded = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i", oversubscribe=True)
    x = np.ones((1, N), np.float32)
    many = np.ones((2 * N,), np.float32)

    assert_same(nested.lower(x).compile()(x), nested(x))
    assert_same(crowded.lower(many).compile()(many), crowded(many))


def test_export_survives_a_round_trip():
    pytest.importorskip("flatbuffers", reason="jax.export writes with flatbuffers")
    exported = jax.export.export(jax.jit(MAPPED))(*STRUCTS)

    loaded = jax.export.deserialize(exported.serialize())

    placed = jax.tree.map(row_sharded, ARGS)
    assert loaded.nr_devices == N
    assert_same(jax.jit(loaded.call)(*placed), MAPPED(*ARGS))


def test_a_pmapped_function_is_exported_as_it_is():
    exported = jax.export.export(MAPPED)(*STRUCTS)

    assert [aval.shape for aval in exported.in_avals] == [(N, 4), (N, 4)]
    assert [aval.shape for aval in exported.out_avals] == [(N, 4), ()]
    assert_same(jax.jit(exported.call)(*jax.tree.map(row_sharded, ARGS)), MAPPED(*ARGS))


def pointers(x):
    return sorted(shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards)


@pytest.mark.no_context_mesh("its own array is typed with another mesh", kind="explicit")
def test_a_donated_input_is_reused_and_reads_as_deleted():
    # What a program made: an array put from NumPy may share NumPy's memory, which no one can reuse.
    x = jax.jit(lambda x: x * 1)(row_sharded(np.ones((N, 1024), np.float32)))
    before = pointers(x)

    result = pmapx.pmap(lambda x: x + 1, donate_argnums=0)(x)

    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(x)
    assert pointers(result) == before
    np.testing.assert_array_equal(result, np.full((N, 1024), 2))


def test_every_call_donates():
    add_one = pmapx.pmap(lambda x: x + 1, donate_argnums=(0,))
    x = row_sharded(ROWS)
    seen = []
    for _ in range(4):
        seen.append(x)
        x = add_one(x)

    assert all(old.is_deleted() for old in seen)
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, ROWS + 4)


def test_only_the_donated_argument_is_deleted():
    state, batch = row_sharded(ROWS), row_sharded(ROWS)
    mapped = pmapx.pmap(lambda state, batch: state + batch, donate_argnums=0)

    mapped(state, batch)

    assert state.is_deleted()
    assert not batch.is_deleted()


def test_a_donated_tree_gives_every_leaf_away():
    state = {"w": row_sharded(ROWS), "b": [row_sharded(ROWS + 1)]}
    mapped = pmapx.pmap(lambda state: jax.tree.map(jnp.negative, state), donate_argnums=0)

    result = mapped(state)

    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    np.testing.assert_array_equal(result["b"][0], -ROWS - 1)


def test_a_negative_argnum_counts_from_the_end():
    x = row_sharded(ROWS)

    pmapx.pmap(lambda a, b: a + b, donate_argnums=-1)(ROWS, x)

    assert x.is_deleted()


def test_donated_numpy_is_left_alone():
    x = ROWS.copy()

    result = pmapx.pmap(lambda x: x + 1, donate_argnums=0)(x)

    np.testing.assert_array_equal(x, ROWS)
    np.testing.assert_array_equal(result, ROWS + 1)


@pytest.mark.no_context_mesh("jnp copies no array of one device of the mesh")
@pytest.mark.needs_devices(2)
def test_a_donated_input_that_is_moved_does_not_corrupt_anything():
    x = jax.device_put(ROWS, jax.devices()[-1])
    twin = jnp.array(x, copy=True)

    result = pmapx.pmap(lambda x: x + 1, donate_argnums=0)(x)

    np.testing.assert_array_equal(result, ROWS + 1)
    np.testing.assert_array_equal(twin, ROWS)


@pytest.mark.needs_devices(2)
def test_a_donated_replicated_input_does_not_corrupt_anything():
    mesh = Mesh(np.array(jax.devices()), ("r",))
    x = jax.device_put(ROWS, NamedSharding(mesh, P()))
    add_one = pmapx.pmap(lambda x: x + 1, donate_argnums=0)

    for _ in range(3):
        x = jax.device_put(ROWS, NamedSharding(mesh, P()))
        np.testing.assert_array_equal(add_one(x), ROWS + 1)


def ours(warned):
    """Returns the warnings of pmapx: on one device JAX has a word of its own, without a name."""
    return [w.message for w in warned if isinstance(w.message, pmapx.PmapxWarning)]


def test_a_donation_that_cannot_be_used_warns_and_names_the_argument():
    def fun(state, batch):
        return state.sum() + batch["image"].sum()

    mapped = pmapx.pmap(fun, donate_argnums=1)

    with pytest.warns(pmapx.PmapxWarning) as warned:
        mapped(ROWS, {"image": row_sharded(ROWS)})

    assert [message.code for message in ours(warned)] == ["PMX902"]
    assert "argument 1 'batch' at ['image']" in str(ours(warned)[0])


def test_a_donation_that_cannot_be_used_warns_once_and_never_twice():
    mapped = pmapx.pmap(lambda x: x.sum(), donate_argnums=0)

    with pytest.warns(pmapx.PmapxWarning) as warned:
        mapped(row_sharded(ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapped(row_sharded(ROWS))

    assert len(ours(warned)) == 1


def test_a_donation_that_is_used_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pmapx.pmap(lambda a, b: (a + b, b), donate_argnums=(0, 1))(
            row_sharded(ROWS), row_sharded(ROWS)
        )


@pytest.mark.no_context_mesh("its own array is typed with another mesh", kind="explicit")
def test_a_pmap_under_jit_leaves_its_inputs_alone():
    x = row_sharded(ROWS)
    inner = pmapx.pmap(lambda x: x + 1, donate_argnums=0)

    np.testing.assert_array_equal(jax.jit(lambda x: inner(x) + x)(x), 2 * ROWS + 1)
    assert not x.is_deleted()


def test_compiler_options_reach_xla():
    with pytest.raises(Exception, match="no_such_option"):
        pmapx.pmap(lambda x: x, compiler_options={"no_such_option": True})(ROWS)


def test_compiler_options_that_xla_knows_are_taken():
    mapped = pmapx.pmap(lambda x: x * 2, compiler_options={"xla_embed_ir_in_executable": True})

    np.testing.assert_array_equal(mapped(ROWS), 2 * ROWS)
    np.testing.assert_array_equal(mapped.lower(ROWS).compile()(ROWS), 2 * ROWS)


CACHED_PROGRAM = """
import jax
jax.config.update("jax_compilation_cache_dir", {directory!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import numpy as np
import pmapx

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
n = jax.device_count()

def step(state, batch):
    return state + jax.lax.pmean(batch, "i")

mapped = pmapx.pmap(step, "i", donate_argnums=0)
state = mapped(np.ones((n, 4), np.float32), np.ones((n, 4), np.float32))
state = mapped(state, np.ones((n, 4), np.float32))
misplaced = jax.device_put(np.ones((n, 4), np.float32), jax.devices()[-1])
state = mapped(state, misplaced)
print("result", np.asarray(state).sum())
print("hits", events.count("/jax/compilation_cache/cache_hits"))
print("misses", events.count("/jax/compilation_cache/cache_misses"))
"""


def test_a_second_process_compiles_nothing(tmp_path, run_python):
    program = CACHED_PROGRAM.format(directory=str(tmp_path / "cache"))

    first = dict(re.findall(r"(\w+) ([\d.]+)", run_python(program)))
    second = dict(re.findall(r"(\w+) ([\d.]+)", run_python(program)))

    assert int(first["misses"]) > 0
    assert int(second["misses"]) == 0
    assert int(second["hits"]) > 0
    assert first["result"] == second["result"] == str(16.0 * N)


def test_a_profile_shows_the_name(tmp_path):
    def shown_in_the_profile(x):
        return x + 1

    mapped = pmapx.pmap(shown_in_the_profile)
    mapped(ROWS)
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready(mapped(ROWS))

    recorded = b"".join(path.read_bytes() for path in tmp_path.rglob("*.xplane.pb"))
    assert b"shown_in_the_profile" in recorded
