"""What ``lower(...).compile()`` returns, called: inputs anywhere, in the user's terms (B, G)."""

import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same

pytestmark = pytest.mark.behaviour("G")

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def on_mesh(devices, spec):
    return NamedSharding(Mesh(np.array(devices), ("r",)), spec)


def placements():
    devices = jax.devices()
    return {
        "one device": devices[-1],
        "replicated": on_mesh(devices, P()),
        "reversed": on_mesh(devices[::-1], P("r")),
        "half of the devices": on_mesh(devices[: max(1, N // 2)], P("r")),
    }


@pytest.mark.parametrize("where", placements())
def test_a_compiled_function_takes_committed_inputs_from_anywhere(where):
    mapped = pmapx.pmap(lambda x, y: x + 2 * y)
    compiled = mapped.lower(ROWS, ROWS).compile()
    x = jax.device_put(ROWS, placements()[where])

    for _ in range(3):
        assert_same(compiled(x, y := jnp.asarray(ROWS)), mapped(ROWS, y))

    assert not x.is_deleted()


@pytest.mark.needs_devices(2)
def test_transfers_for_a_compiled_function_are_counted_and_named():
    mapped = pmapx.pmap(lambda state, batch: state["w"] + batch)
    compiled = mapped.lower({"w": ROWS}, ROWS).compile()

    for _ in range(3):
        compiled({"w": jax.device_put(ROWS, jax.devices()[-1])}, ROWS)

    (move,) = mapped.cache_info().moved
    assert (move.argument, move.count) == ("argument 0 'state' at ['w']", 3)


@pytest.mark.needs_devices(2)
def test_a_compiled_function_follows_the_reshard_policy():
    committed = jax.device_put(ROWS, jax.devices()[-1])

    refusing = pmapx.pmap(lambda x: x, reshard="error").lower(ROWS).compile()
    with pytest.raises(pmapx.errors.ReshardRefused, match="argument 0 'x'"):
        refusing(committed)
    warning = pmapx.pmap(lambda x: x, reshard="warn").lower(ROWS).compile()
    with pytest.warns(pmapx.errors.InputResharded, match="argument 0 'x'"):
        warning(committed)
    allowing = pmapx.pmap(lambda x: x).lower(ROWS).compile()
    with (
        jax.transfer_guard_device_to_device("disallow"),
        pytest.raises(pmapx.errors.TransferDisallowed),
    ):
        allowing(committed)


@pytest.mark.needs_devices(2)
def test_a_donated_input_that_is_transferred_is_deleted():
    compiled = pmapx.pmap(lambda x: x + 1, donate_argnums=0).lower(ROWS).compile()

    for _ in range(2):
        x = jax.device_put(ROWS, jax.devices()[-1])
        np.testing.assert_array_equal(compiled(x), ROWS + 1)
        assert x.is_deleted()


def test_a_compiled_function_donates():
    compiled = pmapx.pmap(lambda x: x + 1, donate_argnums=0).lower(ROWS).compile()
    x = jax.device_put(ROWS, on_mesh(jax.devices(), P("r")))

    for _ in range(3):
        before, x = x, compiled(x)
        assert before.is_deleted()
    np.testing.assert_array_equal(x, ROWS + 3)


def test_the_stages_are_instances_of_jax_stages():
    traced = pmapx.pmap(lambda x: x + 1).trace(ROWS)
    lowered = traced.lower()

    assert isinstance(traced, jax.stages.Traced)
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(lowered.compile(), jax.stages.Compiled)


@pytest.mark.parametrize("stage", ["traced", "lowered", "compiled"])
def test_the_types_of_the_arguments_know_no_mesh(stage):
    x = jnp.asarray(ROWS)
    traced = pmapx.pmap(lambda x, k: x * k).trace(x, k=x)
    info = {"traced": traced, "lowered": traced.lower()}
    found = info[stage] if stage in info else traced.lower().compile()

    wanted = jax.core.ShapedArray(ROWS.shape, ROWS.dtype)
    assert found.in_avals == ((wanted,), {"k": wanted})
    assert found.args_info == (
        (jax.stages.ArgInfo(wanted, donated=False),),
        {"k": jax.stages.ArgInfo(wanted, donated=False)},
    )


def test_donate_argnums_of_a_stage_count_leaves():
    mapped = pmapx.pmap(lambda a, b: (a, b), donate_argnums=1)

    assert mapped.lower({"x": ROWS, "y": ROWS}, ROWS).donate_argnums == (2,)


def test_another_structure_is_refused_with_the_place():
    compiled = pmapx.pmap(lambda x: x["a"]).lower({"a": ROWS}).compile()

    with pytest.raises(pmapx.errors.CompiledForAnotherTree) as raised:
        compiled({"b": ROWS})
    assert "does not match the input pytree it was called with" in str(raised.value)
    assert "args[0]" in str(raised.value)
    with pytest.raises(TypeError, match=r"length 1 there.* length 2"):
        compiled({"a": ROWS}, ROWS)
    with pytest.raises(TypeError, match="a leaf there"):
        compiled({"a": [ROWS]})
    np.testing.assert_array_equal(compiled({"a": ROWS}), ROWS)


def test_other_types_are_refused_as_jax_does():
    compiled = pmapx.pmap(lambda x: x).lower(ROWS).compile()

    with pytest.raises(TypeError, match=r"Argument 'x' compiled with float32.*called with int32"):
        compiled(ROWS.astype(np.int32))
    with pytest.raises(TypeError, match="compiled with"):
        compiled(ROWS[:, :2])


def test_a_compiled_function_cannot_be_transformed_and_says_so():
    compiled = pmapx.pmap(lambda x: x).lower(ROWS).compile()

    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(TypeError, match="Cannot apply JAX transformations"):
            transform(compiled)(ROWS)


def test_a_compiled_function_checks_for_nans():
    compiled = pmapx.pmap(lambda x: x + 1).lower(ROWS).compile()

    with jax.debug_nans(True):
        np.testing.assert_array_equal(compiled(ROWS), ROWS + 1)
        with pytest.raises(Exception, match="nan"):  # As of any compiled stage of JAX.
            compiled(np.full_like(ROWS, np.nan))


def test_a_compiled_function_survives_serialization():
    compiled = pmapx.pmap(lambda x: {"y": x["a"] + 1}).lower({"a": ROWS}).compile()

    payload = pickle.dumps(serialize_executable.serialize(compiled))
    loaded = serialize_executable.deserialize_and_load(
        *pickle.loads(payload), execution_devices=jax.devices()
    )

    placed = jax.device_put(ROWS, on_mesh(jax.devices(), P("r")))
    np.testing.assert_array_equal(loaded({"a": placed})["y"], ROWS + 1)


def test_a_lowered_function_compiles_with_other_options():
    lowered = pmapx.pmap(lambda x: x + 1).lower(ROWS)

    compiled = lowered.compile(compiler_options={"xla_embed_ir_in_executable": True})
    np.testing.assert_array_equal(compiled(ROWS), ROWS + 1)
    with pytest.raises(Exception, match="no_such_option"):
        lowered.compile(compiler_options={"no_such_option": True})
