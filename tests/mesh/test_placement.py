"""Inputs wherever they lie, and any context mesh (B1-B4, B7, B8)."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same, by_vmap

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def body(x):
    return x * 2 + lax.psum(x, "i")


WANTED = by_vmap(body, "i")(ROWS)


def over(devices, axis="rows"):
    return Mesh(np.array(devices), (axis,))


def placed(value, devices, spec):
    return jax.device_put(value, NamedSharding(over(devices), spec))


def assert_right_and_on(result, devices):
    assert_same(result, WANTED)
    assert isinstance(result.sharding, NamedSharding)
    assert result.sharding.device_set == set(devices)
    assert {shard.data.shape for shard in result.addressable_shards} == {(1, 4)}


@pytest.mark.behaviour("B1")
def test_numpy_is_taken(devices):
    assert_right_and_on(pmapx.pmap(body, "i")(ROWS), devices)


@pytest.mark.behaviour("B1")
def test_an_uncommitted_array_is_taken(devices):
    x = jnp.asarray(ROWS)

    assert not x.committed
    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B1")
def test_nested_lists_of_numbers_are_leaves_of_their_own():
    result = pmapx.pmap(lambda xs: [2 * x for x in xs])([ROWS[:, 0], ROWS[:, 1]])

    assert_same(result, [2 * jnp.asarray(ROWS[:, 0]), 2 * jnp.asarray(ROWS[:, 1])])


@pytest.mark.behaviour("B1")
def test_results_are_arrays_that_jit_and_shard_map_take_as_they_are(devices):
    x = pmapx.pmap(body, "i")(ROWS)
    doubled = jax.jit(
        jax.shard_map(lambda x: 2 * x, mesh=over(devices), in_specs=P("rows"), out_specs=P("rows"))
    )

    assert_same(jax.jit(lambda x: x + 1)(x), WANTED + 1)
    assert_same(doubled(x), 2 * WANTED)


@pytest.mark.behaviour("B2")
@pytest.mark.parametrize("which", [0, -1])
def test_an_array_committed_to_one_device_is_moved(which, devices):
    x = jax.device_put(ROWS, devices[which])

    assert x.committed
    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B2")
def test_the_input_is_left_where_it_was(devices):
    x = jax.device_put(ROWS, devices[-1])

    pmapx.pmap(body, "i")(x)

    assert not x.is_deleted()
    assert x.devices() == {devices[-1]}


@pytest.mark.behaviour("B2")
def test_an_unmapped_argument_committed_to_one_device_is_copied_to_all(devices):
    w = jax.device_put(jnp.float32(3), devices[-1])

    result = pmapx.pmap(lambda w, x: w * x, in_axes=(None, 0))(w, ROWS)

    assert_same(result, 3 * jnp.asarray(ROWS))


@pytest.mark.behaviour("B2")
def test_committed_keys_are_moved(devices):
    keys = jax.device_put(jax.random.split(jax.random.key(0), N), devices[-1])

    assert_same(
        pmapx.pmap(jax.random.normal)(keys), jax.vmap(jax.random.normal)(jax.device_put(keys))
    )


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(8)
def test_an_array_sharded_over_fewer_devices_is_moved(devices):
    x = placed(ROWS, devices[4:], P("rows"))

    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(2)
def test_an_array_on_wholly_other_devices_is_moved(devices):
    half = N // 2
    x = placed(ROWS[:half], devices[half : 2 * half], P("rows"))

    result = pmapx.pmap(body, "i", devices=devices[:half])(x)

    assert_same(result, by_vmap(body, "i")(ROWS[:half]))
    assert result.sharding.device_set == set(devices[:half])


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(2)
def test_an_array_in_another_device_order_is_moved(devices):
    x = placed(ROWS, devices[::-1], P("rows"))

    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(2)
def test_an_array_sharded_along_another_axis_is_moved(devices):
    x = placed(ROWS, devices[: min(N, 4)], P(None, "rows"))

    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(8)
def test_an_array_on_a_two_dimensional_mesh_is_moved(devices):
    mesh = Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
    x = jax.device_put(ROWS, NamedSharding(mesh, P("b", "a")))

    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B3")
@pytest.mark.needs_devices(2)
def test_inputs_committed_to_different_devices_work_in_one_call(devices):
    def fun(a, b, c, tree):
        return a + b + c + tree["d"] + tree["e"]

    result = pmapx.pmap(fun, in_axes=(0, 0, None, 0))(
        ROWS,
        jax.device_put(ROWS, devices[1]),
        placed(ROWS[0], devices, P()),
        {"d": placed(ROWS, devices[::-1], P("rows")), "e": jnp.asarray(ROWS)},
    )

    assert_same(result, jnp.asarray(4 * ROWS + ROWS[0]))


PLACES = {
    "committed": lambda d: jax.device_put(ROWS, d[-1]),
    "replicated": lambda d: placed(ROWS, d, P()),
    "reversed": lambda d: placed(ROWS, d[::-1], P("rows")),
    "on half the devices": lambda d: placed(ROWS, d[: max(1, N // 2)], P("rows")),
    "where it belongs": lambda d: placed(ROWS, d, P("rows")),
    "where it belongs, explicitly": lambda d: jax.device_put(
        ROWS, NamedSharding(Mesh(np.array(d), ("e",), axis_types=(AxisType.Explicit,)), P("e"))
    ),
}


@pytest.mark.behaviour("B3")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("transform", ["grad", "jvp", "linearize"])
def test_derivatives_work_for_inputs_committed_to_any_device(place, transform, devices):
    x = place(devices)
    mapped = pmapx.pmap(lambda x, y: x * y + lax.psum(x, "i"), "i")

    def of_x(x):
        return mapped(x, ROWS)

    if transform == "grad":
        result = jax.vjp(of_x, x)[1](np.ones_like(ROWS))[0]
    elif transform == "jvp":
        result = jax.jvp(of_x, (x,), (np.ones_like(ROWS),))[1]
    else:
        result = jax.linearize(of_x, x)[1](np.ones_like(ROWS))

    np.testing.assert_array_equal(result, ROWS + N)


@pytest.mark.behaviour("B3")
@pytest.mark.parametrize("where", [name for name in PLACES if "explicitly" not in name])
def test_a_closed_over_array_may_be_committed_to_any_device(where, devices):
    table = PLACES[where](devices)

    result = pmapx.pmap(lambda x: x + table.sum())(ROWS)

    np.testing.assert_array_equal(result, ROWS + ROWS.sum())


@pytest.mark.behaviour("B4")
def test_a_replicated_array_is_resharded(devices):
    x = placed(ROWS, devices, P())

    assert_right_and_on(pmapx.pmap(body, "i")(x), devices)


@pytest.mark.behaviour("B4")
def test_a_replicated_array_is_resharded_without_leaving_the_devices(devices):
    x = placed(ROWS, devices, P())
    mapped = pmapx.pmap(body, "i")
    mapped(x)

    with (
        jax.transfer_guard_host_to_device("disallow_explicit"),
        jax.transfer_guard_device_to_host("disallow_explicit"),
    ):
        result = jax.block_until_ready(mapped(x))
        with pytest.raises(Exception, match=r"host-to-device"):
            jax.block_until_ready(mapped(ROWS))

    assert_right_and_on(result, devices)


CONTEXTS = {
    "same name": lambda d: Mesh(np.array(d), ("i",)),
    "same name, explicit": lambda d: Mesh(np.array(d), ("i",), axis_types=(AxisType.Explicit,)),
    "other name": lambda d: Mesh(np.array(d), ("x",)),
    "other name, explicit": lambda d: Mesh(np.array(d), ("x",), axis_types=(AxisType.Explicit,)),
    "one device": lambda d: Mesh(np.array(d[-1:]), ("x",)),
    "reversed, explicit": lambda d: Mesh(
        np.array(d[::-1]), ("i",), axis_types=(AxisType.Explicit,)
    ),
    "two axes": lambda d: Mesh(np.array(d).reshape(-1, 1 + (len(d) > 1)), ("x", "y")),
    "two axes, explicit": lambda d: Mesh(
        np.array(d).reshape(-1, 1 + (len(d) > 1)),
        ("x", "y"),
        axis_types=(AxisType.Explicit, AxisType.Explicit),
    ),
    "two axes, mixed": lambda d: Mesh(
        np.array(d).reshape(-1, 1 + (len(d) > 1)),
        ("i", "y"),
        axis_types=(AxisType.Explicit, AxisType.Auto),
    ),
    "some devices, explicit": lambda d: Mesh(
        np.array(d[: max(1, len(d) // 2)]), ("x",), axis_types=(AxisType.Explicit,)
    ),
}


@pytest.fixture(params=CONTEXTS.values(), ids=CONTEXTS.keys())
def context_mesh(request, devices):
    return request.param(devices)


@pytest.mark.behaviour("B7")
def test_a_first_call_inside_set_mesh(context_mesh, devices):
    with jax.set_mesh(context_mesh):
        result = pmapx.pmap(body, "i")(ROWS)

    assert_right_and_on(result, devices)


@pytest.mark.behaviour("B7")
def test_calls_inside_and_outside_set_mesh_share_a_program(context_mesh, devices):
    mapped = pmapx.pmap(body, "i")
    mapped.clear_cache()  # Other tests map the same function.

    outside = mapped(ROWS)
    with jax.set_mesh(context_mesh):
        inside = mapped(ROWS)
        mapped(inside)

    assert_right_and_on(outside, devices)
    assert_right_and_on(inside, devices)
    has_room_beside_the_map = len(context_mesh.axis_names) > 1 and context_mesh.shape.get("i") == N
    if not has_room_beside_the_map:  # There the body may map over the other axes, see D4.
        assert mapped.cache_info().traces == mapped.cache_info().compiles == 1


@pytest.mark.behaviour("B7")
def test_arrays_of_the_context_mesh_are_taken(context_mesh, devices):
    with jax.set_mesh(context_mesh):
        axis = context_mesh.axis_names[0]
        x = jax.device_put(ROWS, NamedSharding(context_mesh, P(axis)))
        replicated = jax.device_put(ROWS, NamedSharding(context_mesh, P()))
        created = jnp.asarray(ROWS)
        mapped = pmapx.pmap(body, "i")
        results = [mapped(x), mapped(replicated), mapped(created)]

    results.append(mapped(x))
    for result in results:
        assert_right_and_on(result, devices)


@pytest.mark.behaviour("B7")
def test_a_pmap_under_an_outer_jit_inside_set_mesh(context_mesh):
    with jax.set_mesh(context_mesh):
        result = jax.jit(lambda x: pmapx.pmap(body, "i")(x) + 1)(ROWS)

    np.testing.assert_array_equal(result, WANTED + 1)


@pytest.mark.behaviour("B7")
def test_a_placed_argument_of_an_outer_jit_inside_set_mesh(context_mesh):
    with jax.set_mesh(context_mesh):
        x = jax.device_put(ROWS, NamedSharding(context_mesh, P(context_mesh.axis_names[0])))
        result = jax.jit(lambda x: pmapx.pmap(body, "i")(x * 1) + 0)(x)

    np.testing.assert_array_equal(result, WANTED)


@pytest.mark.behaviour("B7")
def test_the_gradient_inside_set_mesh(context_mesh):
    mapped = pmapx.pmap(lambda x: lax.psum(x * x, "i"), "i", out_axes=None)
    with jax.set_mesh(context_mesh):
        gradient = jax.grad(lambda x: mapped(x).sum())(jnp.asarray(ROWS))

    np.testing.assert_array_equal(gradient, 2 * ROWS)


@pytest.mark.behaviour("B7")
def test_a_first_call_inside_an_abstract_mesh(devices):
    mesh = over(devices, "x")
    use_abstract_mesh = getattr(jax.sharding, "use_abstract_mesh", None)
    if use_abstract_mesh is None:
        pytest.skip("this JAX has no public use_abstract_mesh")
    with use_abstract_mesh(mesh.abstract_mesh):
        assert_right_and_on(pmapx.pmap(body, "i")(ROWS), devices)


@pytest.mark.behaviour("B7")
def test_calls_work_inside_the_old_mesh_context(devices):
    with over(devices, "i"):
        assert_right_and_on(pmapx.pmap(body, "i")(ROWS), devices)


@pytest.mark.behaviour("B7")
def test_the_context_mesh_is_restored_after_a_call(context_mesh):
    with jax.set_mesh(context_mesh):
        before = jax.sharding.get_abstract_mesh()
        pmapx.pmap(body, "i")(ROWS)
        with pytest.raises(ZeroDivisionError):
            pmapx.pmap(lambda x: 1 / 0)(ROWS)
        after = jax.sharding.get_abstract_mesh()

    assert after == before


@pytest.mark.behaviour("B7")
def test_calls_work_with_a_default_device(devices):
    with jax.default_device(devices[-1]):
        assert_right_and_on(pmapx.pmap(body, "i")(jnp.asarray(ROWS)), devices)


MISPLACED = {
    "committed": lambda d: jax.device_put(ROWS, d[-1]),
    "replicated": lambda d: placed(ROWS, d, P()),
    "reversed": lambda d: placed(ROWS, d[::-1], P("rows")),
}


@pytest.fixture(params=MISPLACED.values(), ids=MISPLACED.keys())
def misplaced(request, devices):
    if N == 1:
        pytest.skip("needs 2 devices, 1 is there: every array lies right")
    return request.param(devices)


@pytest.mark.behaviour("B8")
def test_allow_moves_in_silence_and_keeps_count(misplaced, devices):
    def fun(state, batch):
        return state + batch["image"]

    mapped = pmapx.pmap(fun)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            mapped(ROWS, {"image": misplaced})

    (move,) = mapped.cache_info().moved
    assert move.argument == "argument 1 'batch' at ['image']"
    assert move.count == 3
    assert move.reason


@pytest.mark.behaviour("B8")
@pytest.mark.needs_devices(2)
def test_moves_of_arguments_of_one_shape_are_counted_apart(misplaced):
    mapped = pmapx.pmap(lambda a, b, c: a + b + c)
    placed = mapped(ROWS, ROWS, ROWS)

    for _ in range(3):
        mapped(misplaced, misplaced, placed)
    for _ in range(4):
        mapped(placed, misplaced, placed)
    for _ in range(2):
        mapped(placed, placed, placed)

    counts = {move.argument: move.count for move in mapped.cache_info().moved}
    assert counts == {"argument 0 'a'": 3, "argument 1 'b'": 7}


@pytest.mark.behaviour("B8")
@pytest.mark.needs_devices(2)
def test_moves_of_typed_keys_are_counted(devices):
    keys = jax.device_put(jax.random.split(jax.random.key(0), N), devices[-1])
    mapped = pmapx.pmap(lambda key: jax.random.normal(key))

    results = [np.asarray(mapped(keys)) for _ in range(3)]

    assert [move.count for move in mapped.cache_info().moved] == [3]
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.behaviour("B8")
@pytest.mark.needs_devices(2)
def test_with_warnings_as_errors_each_call_that_moves_raises(misplaced):
    mapped = pmapx.pmap(body, "i", reshard="warn")

    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(pmapx.PmapxWarning, match="PMX901"):
                mapped(misplaced)
    assert mapped.cache_info().moved == ()


@pytest.mark.behaviour("B8")
def test_warn_moves_and_names_the_argument(misplaced, devices):
    def fun(state, batch):
        return state + batch["image"]

    with pytest.warns(pmapx.PmapxWarning) as warned:
        result = pmapx.pmap(fun, reshard="warn")(ROWS, {"image": misplaced})

    assert [w.message.code for w in warned] == ["PMX901"]
    assert "argument 1 'batch' at ['image']" in str(warned[0].message)
    assert_same(result, jnp.asarray(2 * ROWS))


@pytest.mark.behaviour("B8")
def test_a_warning_points_at_the_callers_line(misplaced):
    mapped = pmapx.pmap(body, "i", reshard="warn")

    with pytest.warns(pmapx.PmapxWarning) as warned:
        mapped(misplaced)

    assert warned[0].filename == __file__


@pytest.mark.behaviour("B8")
def test_error_names_the_argument_both_shardings_and_the_fix(misplaced):
    def fun(state, batch):
        return state + batch["image"]

    mapped = pmapx.pmap(fun, reshard="error")

    with pytest.raises(ValueError, match="PMX301") as raised:
        mapped(ROWS, {"image": misplaced})

    text = str(raised.value)
    assert "argument 1 'batch' at ['image']" in text
    assert type(misplaced.sharding).__name__ in text
    assert "NamedSharding" in text
    assert "device_put" in text
    assert any(line.strip().startswith("fix:") for line in text.splitlines())


@pytest.mark.behaviour("B8")
def test_error_leaves_the_function_usable(misplaced, devices):
    mapped = pmapx.pmap(body, "i", reshard="error")

    first = mapped(ROWS)
    with pytest.raises(pmapx.PmapxError):
        mapped(misplaced)

    assert_right_and_on(first, devices)
    assert_right_and_on(mapped(ROWS), devices)


@pytest.mark.behaviour("B8")
@pytest.mark.parametrize("reshard", ["warn", "error"])
def test_well_placed_and_unplaced_inputs_pass_every_policy(reshard, devices):
    mapped = pmapx.pmap(body, "i", reshard=reshard)

    for x in [ROWS, jnp.asarray(ROWS), placed(ROWS, devices, P("rows")), mapped(ROWS)]:
        mapped(x)
    assert_right_and_on(mapped(placed(ROWS, devices, P("rows"))), devices)


@pytest.mark.behaviour("B8")
def test_an_equivalent_sharding_spelled_otherwise_is_not_moved(devices):
    mesh = Mesh(np.array(devices).reshape(N, 1), ("a", "b"))
    x = jax.device_put(ROWS, NamedSharding(mesh, P(("a", "b"), None)))

    assert_right_and_on(pmapx.pmap(body, "i", reshard="error")(x), devices)


@pytest.mark.behaviour("B8")
def test_a_correctly_placed_explicit_sharding_is_not_transferred(devices):
    mesh = Mesh(np.array(devices), ("a",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(ROWS, NamedSharding(mesh, P("a")))
    mapped = pmapx.pmap(body, "i", reshard="error")

    assert_right_and_on(mapped(x), devices)
    assert mapped.cache_info().moved == ()


@pytest.mark.behaviour("B8")
def test_an_array_committed_to_the_only_device_is_not_transferred(devices):
    x = jax.device_put(ROWS[:1], SingleDeviceSharding(devices[0]))

    result = pmapx.pmap(lambda x: x + 1, reshard="error", devices=devices[:1])(x)

    assert_same(result, jnp.asarray(ROWS[:1] + 1))


@pytest.mark.behaviour("B8")
@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_placed_inputs_pass_under_the_transfer_guard(guard, devices):
    x = placed(ROWS, devices, P("rows"))
    w = placed(np.float32(2), devices, P())
    mapped = pmapx.pmap(lambda w, x: w * x, in_axes=(None, 0))
    warm = mapped(w, x)

    with jax.transfer_guard(guard):
        result = jax.block_until_ready(mapped(w, x))

    assert_same(result, warm)


@pytest.mark.behaviour("B8")
def test_the_first_call_with_placed_inputs_passes_under_the_transfer_guard(devices):
    x = placed(ROWS, devices, P("rows"))

    with jax.transfer_guard("disallow"):
        result = jax.block_until_ready(pmapx.pmap(body, "i")(x))

    assert_right_and_on(result, devices)


@pytest.mark.behaviour("B8")
def test_a_misplaced_input_is_refused_under_the_transfer_guard(devices):
    if N == 1:
        pytest.skip("needs 2 devices, 1 is there: every array lies right")
    mapped = pmapx.pmap(body, "i")
    mapped(ROWS)
    x = jax.device_put(ROWS, devices[-1])

    with jax.transfer_guard("disallow"), pytest.raises(pmapx.PmapxError, match="PMX302") as raised:
        mapped(x)

    assert "argument 0 'x'" in str(raised.value)
    assert_right_and_on(mapped(x), devices)


@pytest.mark.behaviour("B8")
def test_an_outer_jit_places_its_own_arguments():
    result = jax.jit(pmapx.pmap(body, "i", reshard="error"))(ROWS)

    np.testing.assert_array_equal(result, WANTED)


@pytest.mark.parametrize("devices", [[], ()])
def test_a_map_over_no_devices_raises_when_it_is_called(devices):
    mapped = pmapx.pmap(lambda x: x, devices=devices)

    for call in (mapped, mapped.lower, mapped.eval_shape, jax.jit(mapped), mapped):
        with pytest.raises(pmapx.errors.NoDevices, match="must be non-empty, or None"):
            call(np.ones((1, 2)))


def test_an_unknown_backend_raises_at_the_first_call():
    mapped = pmapx.pmap(lambda x: x, backend="no_such_backend")

    with pytest.raises(RuntimeError, match="no_such_backend"):
        mapped(np.ones((1, 2)))
