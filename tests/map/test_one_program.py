"""One trace and one compile a signature, wherever the inputs lie (B5, B6)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same
from program_counts import counting

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def placed(value, devices, axis="rows", spec=None, **mesh_options):
    mesh = Mesh(np.array(devices), (axis,), **mesh_options)
    return jax.device_put(value, NamedSharding(mesh, P(axis) if spec is None else spec))


def make_step():
    bodies = []

    def counted_step(x):
        bodies.append(x.shape)
        return x + lax.pmean(x, "i")

    return pmapx.pmap(counted_step, "i"), bodies


def tally(mapped):
    info = mapped.cache_info()
    return info.traces, info.compiles, info.calls


def assert_one_program(step, counts, bodies):
    assert len(bodies) == 1, "the body ran again"
    assert counts.traces_of("counted_step") == 1
    assert counts.compiles_of("counted_step") == 1
    assert tally(step)[:2] == (1, 1)


@pytest.mark.behaviour("B5")
def test_the_name_of_the_mesh_axis_does_not_matter(devices):
    step, bodies = make_step()
    with counting() as counts:
        first = step(placed(ROWS, devices, "i"))
        for axis in ["data", "batch", "pmapx"]:
            assert_same(step(placed(ROWS, devices, axis)), first)

    assert_one_program(step, counts, bodies)


@pytest.mark.behaviour("B5")
def test_the_type_of_the_mesh_axis_does_not_matter(devices):
    step, bodies = make_step()
    with counting() as counts:
        first = step(placed(ROWS, devices, "i", axis_types=(AxisType.Auto,)))
        assert_same(step(placed(ROWS, devices, "i", axis_types=(AxisType.Explicit,))), first)

    assert_one_program(step, counts, bodies)


@pytest.mark.behaviour("B5")
def test_the_shape_of_the_mesh_does_not_matter_when_the_layout_is_the_same(devices):
    mesh = Mesh(np.array(devices).reshape(N, 1), ("a", "b"))
    step, bodies = make_step()
    with counting() as counts:
        step(placed(ROWS, devices))
        step(jax.device_put(ROWS, NamedSharding(mesh, P(("a", "b")))))
        step(jax.device_put(ROWS, NamedSharding(mesh, P("a", "b"))))

    assert_one_program(step, counts, bodies)
    assert step.cache_info().moved == ()


@pytest.mark.behaviour("B6")
def test_numpy_then_a_placed_array_then_its_own_output(devices):
    step, bodies = make_step()
    with counting() as counts:
        first = step(ROWS)
        step(placed(ROWS, devices, "other"))
        step(step(first))

    assert_one_program(step, counts, bodies)
    assert step.cache_info().calls == 4
    assert step.cache_info().moved == ()


@pytest.mark.behaviour("B6")
def test_every_placement_shares_the_program(devices):
    step, bodies = make_step()
    wanted = ROWS + ROWS.mean(0)
    with counting() as counts:
        for x in [
            ROWS,
            jnp.asarray(ROWS),
            jax.device_put(ROWS, devices[-1]),
            placed(ROWS, devices, spec=P()),
            placed(ROWS, devices[::-1]),
            placed(ROWS, devices[: max(1, N // 2)]),
            placed(ROWS, devices),
            ROWS,
        ]:
            np.testing.assert_array_equal(step(x), wanted)

    assert_one_program(step, counts, bodies)
    assert step.cache_info().calls == 8


@pytest.mark.behaviour("B6")
def test_every_placement_may_follow_every_other(devices):
    half = devices[: max(1, N // 2)]
    square = np.arange(float(N * N), dtype=np.float32).reshape(N, N)
    unmapped = np.arange(float(N), dtype=np.float32)
    places = [
        np.asarray,
        jnp.asarray,
        lambda x: jax.device_put(x, devices[-1]),
        lambda x: placed(x, devices, spec=P()),
        lambda x: placed(x, devices),
        lambda x: placed(x, devices[::-1]),
        lambda x: placed(x, half),
        lambda x: placed(x, devices, "c", P(*[None] * (x.ndim - 1), "c")),
        lambda x: placed(x, devices, "e", axis_types=(AxisType.Explicit,)),
    ]
    mapped = pmapx.pmap(lambda x, w: x * 2 + w, in_axes=(0, None))
    turn = 0
    for first in places:
        for second in places:
            for place, place_unmapped in [(first, second), (second, first)]:
                turn += 1
                result = mapped(place(square + turn), place_unmapped(unmapped))
                np.testing.assert_array_equal(result, 2 * (square + turn) + unmapped)

    assert tally(mapped) == (1, 1, turn)


@pytest.mark.behaviour("B6")
def test_a_misplaced_first_call_leaves_a_program_for_all(devices):
    step, bodies = make_step()
    with counting() as counts:
        step(jax.device_put(ROWS, devices[-1]))
        step(ROWS)
        step(placed(ROWS, devices))

    assert_one_program(step, counts, bodies)


@pytest.mark.behaviour("B6")
def test_a_training_loop_compiles_nothing_after_its_first_step(devices):
    def training_step(params, batch):
        gradient = jax.grad(lambda p: ((batch @ p["w"] + p["b"]) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * lax.pmean(g, "i"), params, gradient)

    step = pmapx.pmap(training_step, "i")
    params = {"w": np.ones((N, 4), np.float32), "b": np.zeros(N, np.float32)}
    params = step(params, ROWS)
    with counting() as counts:
        for _ in range(5):
            params = step(params, ROWS)

    assert counts.traced == []
    assert counts.compiled == []
    assert tally(step) == (1, 1, 6)


@pytest.mark.behaviour("B6")
def test_a_repeated_call_with_a_misplaced_input_compiles_nothing(devices):
    step, _ = make_step()
    for _ in range(2):
        step(jax.device_put(ROWS, devices[-1]))
    x = jax.device_put(ROWS + 1, devices[-1])
    with counting() as counts:
        step(x)

    assert counts.traced == []
    assert counts.compiled == []


@pytest.mark.behaviour("B6")
def test_unmapped_python_scalars_of_any_value_share_a_program():
    bodies = []

    def fun(x, rate):
        bodies.append(rate)
        return x * rate

    mapped = pmapx.pmap(fun, in_axes=(0, None))
    for rate in [1.0, 2.0, 0.5]:
        np.testing.assert_array_equal(mapped(ROWS, rate), ROWS * np.float32(rate))

    assert len(bodies) == 1
    assert tally(mapped) == (1, 1, 3)


@pytest.mark.behaviour("B6")
def test_a_new_shape_is_a_new_program_and_the_reason_says_so():
    step, bodies = make_step()
    step(ROWS)
    step(ROWS[:, :2])
    step(ROWS)

    info = step.cache_info()
    assert bodies == [(4,), (2,)]
    assert tally(step) == (2, 2, 3)
    assert len(info.reasons) == 2
    assert "argument 0 'x'" in info.reasons[1]
    assert f"[{N},4]" in info.reasons[1] or f"({N}, 4)" in info.reasons[1]
    assert f"[{N},2]" in info.reasons[1] or f"({N}, 2)" in info.reasons[1]


@pytest.mark.behaviour("B6")
@pytest.mark.parametrize(
    ("second", "word"),
    [
        (lambda: ((ROWS.astype(np.int32), 1), {}), "int32"),
        (lambda: ((ROWS, 2), {}), "static"),
        (lambda: ((ROWS, 1), {"y": ROWS}), "structure"),
    ],
    ids=["dtype", "static value", "structure"],
)
def test_the_reason_of_a_second_compile_names_what_changed(second, word):
    def fun(x, mode, y=None):
        return x * mode

    mapped = pmapx.pmap(fun, static_broadcasted_argnums=1)
    mapped(ROWS, 1)
    args, kwargs = second()
    mapped(*args, **kwargs)

    assert mapped.cache_info().compiles == 2
    assert word in mapped.cache_info().reasons[-1]


@pytest.mark.behaviour("B6")
def test_clear_cache_forgets_the_programs_and_the_counts():
    step, bodies = make_step()
    step(ROWS)

    step.clear_cache()
    assert tally(step) == (0, 0, 0)
    assert step.cache_info().moved == step.cache_info().reasons == ()

    step(ROWS)
    assert len(bodies) == 2
    assert tally(step) == (1, 1, 1)


@pytest.mark.behaviour("B6")
def test_calls_work_after_jax_clear_caches():
    step, _ = make_step()
    first = step(ROWS)

    jax.clear_caches()

    assert_same(step(ROWS), first)


@pytest.mark.behaviour("B6")
def test_two_pmaps_of_one_function_keep_their_own_counts():
    def fun(x):
        return x + 1

    one, two = pmapx.pmap(fun), pmapx.pmap(fun, out_axes=1)
    one(ROWS)

    assert one.cache_info().calls == 1
    assert two.cache_info().calls == 0
    np.testing.assert_array_equal(two(ROWS), (ROWS + 1).T)


@pytest.mark.behaviour("B6")
def test_a_failed_call_compiles_nothing_and_keeps_the_programs():
    step, _ = make_step()
    step(ROWS)
    with pytest.raises(pmapx.PmapxError):
        step(1.0)

    assert step.cache_info().compiles == 1
    assert_same(step(ROWS), step(ROWS))


@pytest.mark.behaviour("B6")
def test_a_changed_default_matmul_precision_compiles_another_program():
    mapped = pmapx.pmap(lambda x: x @ x.T)
    cube = np.ones((N, 2, 2), np.float32)
    mapped(cube)
    with jax.default_matmul_precision("highest"):
        mapped(cube)
    mapped(cube)

    assert mapped.cache_info().compiles == 2


@pytest.mark.behaviour("B6")
def test_the_order_of_keywords_and_keys_does_not_matter():
    mapped = pmapx.pmap(lambda tree, *, a, b: tree["x"] - tree["y"] + 2 * a - b)

    first = mapped({"x": ROWS, "y": ROWS + 1}, a=ROWS, b=ROWS + 2)
    second = mapped({"y": ROWS + 1, "x": ROWS}, b=ROWS + 2, a=ROWS)

    assert_same(first, second)
    assert tally(mapped) == (1, 1, 2)


@pytest.mark.behaviour("B6")
def test_64_bit_numpy_shares_the_program_of_what_it_becomes():
    step, _ = make_step()

    for dtype in [np.float32, np.float64, np.float32]:
        assert step(ROWS.astype(dtype)).dtype == np.float32

    assert tally(step) == (1, 1, 3)


@pytest.mark.behaviour("B6")
def test_weak_and_strong_types_compile_separately():
    mapped = pmapx.pmap(lambda x: x * 2)
    weak, strong = jnp.broadcast_to(1.0, N), jnp.ones(N)

    assert [mapped(x).weak_type for x in (weak, strong, weak, strong)] == [True, False] * 2


@pytest.mark.behaviour("B6")
def test_a_stricter_setting_is_not_bypassed_by_a_program_that_is_there():
    mapped = pmapx.pmap(lambda x: x + jnp.arange(4))
    mapped(ROWS)

    with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="promotion"):
        mapped(ROWS)

    np.testing.assert_array_equal(mapped(ROWS), ROWS + np.arange(4))


@pytest.mark.behaviour("B6")
def test_debug_nans_is_not_bypassed_by_a_program_that_is_there():
    mapped = pmapx.pmap(lambda x: x / x)
    mapped(ROWS + 1)

    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(mapped(ROWS))

    np.testing.assert_array_equal(mapped(ROWS + 1), np.ones_like(ROWS))


@pytest.mark.behaviour("B6")
def test_disable_jit_is_not_bypassed_by_a_program_that_is_there():
    step, bodies = make_step()
    first = step(ROWS)

    with jax.disable_jit():
        again = step(ROWS)

    assert len(bodies) == 2
    assert_same(again, first)


@pytest.mark.behaviour("B6")
def test_an_outer_jit_is_not_bypassed_by_a_program_that_is_there():
    step, _ = make_step()
    first = step(ROWS)

    jaxpr = jax.make_jaxpr(lambda: step(ROWS))()

    assert "psum" in str(jaxpr)
    np.testing.assert_array_equal(jax.jit(lambda: step(ROWS) + 1)(), first + 1)


@pytest.mark.behaviour("B6")
def test_a_deleted_input_is_refused_and_the_program_stays():
    step, _ = make_step()
    first = step(ROWS)
    gone = jnp.asarray(ROWS)
    gone.delete()

    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(gone)

    assert_same(step(ROWS), first)


@pytest.mark.behaviour("B6")
def test_the_metadata_of_a_container_is_part_of_the_signature():
    @jax.tree_util.register_pytree_node_class
    class Scaled:
        def __init__(self, x, scale):
            self.x, self.scale = x, scale

        def tree_flatten(self):
            return (self.x,), self.scale

        @classmethod
        def tree_unflatten(cls, scale, children):
            return cls(*children, scale)

    mapped = pmapx.pmap(lambda s: Scaled(s.x * s.scale, s.scale))

    for scale in [2, 3, 2]:
        np.testing.assert_array_equal(mapped(Scaled(ROWS, scale)).x, scale * ROWS)
    assert tally(mapped) == (2, 2, 3)


@pytest.mark.behaviour("B6")
def test_calls_go_on_while_results_are_in_flight():
    step, _ = make_step()
    x = step(ROWS)
    for k in range(20):
        x = step(x) % 16
        if k % 5 == 4:
            # XLA's CPU devices share a pool of threads; on few cores, many collectives that wait
            # for each other there end the process, whoever launched them.
            x.block_until_ready()

    wanted = ROWS + ROWS.mean(0)
    for _ in range(20):
        wanted = (wanted + wanted.mean(0)) % 16
    np.testing.assert_array_equal(x, wanted)
