"""out_axes=AUTO: None for what is proven equal on all devices, 0 for the rest, leaf by leaf."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import pmapx
from pmapx._src import errors

N = jax.device_count()
ROWS = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)
TOTAL = ROWS.sum(0)


def mixed(x):
    return {"row": 2 * x, "total": lax.psum(x, "i"), "constant": 7.0, "index": lax.axis_index("i")}


def check_mixed(result):
    assert {name: leaf.shape for name, leaf in result.items()} == {
        "row": (N, 3),
        "total": (3,),
        "constant": (),
        "index": (N,),
    }
    np.testing.assert_array_equal(result["row"], 2 * ROWS)
    np.testing.assert_array_equal(result["total"], TOTAL)
    np.testing.assert_array_equal(result["index"], np.arange(N))
    assert result["constant"] == 7.0


def test_each_leaf_gets_its_axis():
    check_mixed(pmapx.pmap(mixed, "i", out_axes=pmapx.AUTO)(ROWS))


@pytest.mark.no_context_mesh("results are on its mesh")
def test_the_function_is_traced_once_and_compiled_once():
    f = pmapx.pmap(mixed, "i", out_axes=pmapx.AUTO)
    f.clear_cache()  # Other tests map the same function.
    first = f(ROWS)
    f(ROWS)
    f(jax.device_put(ROWS, jax.devices()[-1]))
    info = f.cache_info()
    assert (info.traces, info.compiles, info.calls) == (1, 1, 3)
    assert first["total"].sharding.spec == P()
    assert first["row"].sharding.spec == P("i")


def test_no_value_is_lost_so_there_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pmapx.pmap(mixed, "i", out_axes=pmapx.AUTO)(ROWS)


def test_auto_works_beside_integers_and_none():
    f = pmapx.pmap(
        lambda x: (x, x, lax.psum(x, "i"), lax.psum(x, "i"), {"a": x, "b": lax.pmax(x, "i")}),
        "i",
        out_axes=(1, pmapx.AUTO, pmapx.AUTO, None, pmapx.AUTO),
    )
    shapes = jax.tree.map(jnp.shape, f(ROWS))
    assert shapes == ((3, N), (N, 3), (3,), (3,), {"a": (N, 3), "b": (3,)})


@pytest.mark.needs_devices(2)
def test_a_value_that_none_loses_still_warns_beside_it():
    f = pmapx.pmap(lambda x: (lax.psum(x, "i"), x), "i", out_axes=(pmapx.AUTO, None))
    with pytest.warns(errors.PmapxWarning, match=r"output \[1\]"):
        assert jax.tree.map(jnp.shape, f(ROWS)) == ((3,), (3,))


def test_replicated_state_stays_replicated():
    def step(state, x):
        gradient = lax.pmean(jax.grad(lambda w: (w * x).sum())(state["w"]), "i")
        return {"w": state["w"] - gradient, "count": state["count"] + 1}, (state["w"] * x).sum()

    f = pmapx.pmap(step, "i", in_axes=(None, 0), out_axes=pmapx.AUTO, donate_argnums=0)
    state = {"w": jnp.ones(3), "count": 0}
    for _ in range(3):
        state, losses = f(state, ROWS)
    assert jax.tree.map(jnp.shape, (state, losses)) == ({"w": (3,), "count": ()}, (N,))
    np.testing.assert_allclose(state["w"], 1 - 3 * ROWS.mean(0), rtol=1e-5)
    assert f.cache_info().compiles <= 2  # The first count was a Python number.


@pytest.mark.parametrize("name", [None, ("a", "tuple"), object()])
def test_any_axis_name_will_do(name):
    def f(x):
        return (x, 3.0) if name is None else (x, lax.psum(x, (name,)))

    row, same = pmapx.pmap(f, name, out_axes=pmapx.AUTO)(ROWS)
    assert (row.shape, same.shape) == ((N, 3), () if name is None else (3,))


def auto(f=mixed, **options):
    return pmapx.pmap(f, "i", out_axes=pmapx.AUTO, **options)


@pytest.mark.no_context_mesh("compiled stages keep their own mesh", kind="explicit")
@pytest.mark.parametrize(
    "run",
    [
        lambda f: jax.jit(f)(ROWS),
        lambda f: f.lower(ROWS).compile()(ROWS),
        lambda f: jax.jit(f).lower(ROWS).compile()(ROWS),
        lambda f: jax.jvp(f, (ROWS,), (ROWS,))[0],
        lambda f: jax.vjp(f, ROWS)[0],
        lambda f: jax.linearize(f, ROWS)[0],
        lambda f: jax.checkpoint(f)(ROWS),
        lambda f: jax.tree.map(lambda x: x[1], jax.vmap(f)(np.stack([-ROWS, ROWS]))),
        lambda f: lax.scan(lambda _, x: (None, f(x)), None, ROWS[None])[1],
    ],
    ids=["jit", "compiled", "compiled jit", "jvp", "vjp", "linearize", "remat", "vmap", "scan"],
)
def test_it_works_inside_of_transformations(run):
    result = run(auto())
    if result["row"].shape == (1, N, 3):
        result = jax.tree.map(lambda x: x[0], result)
    check_mixed(result)


def test_eval_shape_reports_the_shapes_of_auto_outputs():
    shapes = auto().eval_shape(ROWS)
    assert {name: leaf.shape for name, leaf in shapes.items()} == {
        "row": (N, 3), "total": (3,), "constant": (), "index": (N,),
    }  # fmt: skip


def test_gradients_are_those_of_explicit_axes():
    def f(x):
        return jnp.sin(x), lax.psum(x**2, "i")

    def loss(mapped, x):
        rows, total = mapped(x)
        return rows.sum() + (total * jnp.arange(3.0)).sum()

    found = jax.grad(lambda x: loss(auto(f), x))(ROWS)
    wanted = jax.grad(lambda x: loss(pmapx.pmap(f, "i", out_axes=(0, None)), x))(ROWS)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_it_works_operation_by_operation():
    with jax.disable_jit():
        check_mixed(auto()(ROWS))


def test_it_works_under_any_mesh():
    mesh = jax.make_mesh((N,), ("other",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        check_mixed(auto()(ROWS))
        check_mixed(jax.jit(auto())(ROWS))


@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("is_called_inside", [False, True])
def test_nested_maps_decide_each_for_its_own_axis(is_called_inside):
    def f(x):
        return x, lax.psum(x, "i"), lax.psum(x, "j"), lax.psum(x, ("i", "j"))

    inner = pmapx.pmap(f, "j", out_axes=pmapx.AUTO)
    outer = pmapx.pmap(
        (lambda x: inner(x)) if is_called_inside else inner, "i", out_axes=pmapx.AUTO
    )
    x = np.arange(N * 3.0).reshape(N // 2, 2, 3)
    row, over_i, over_j, over_both = outer(x)
    np.testing.assert_array_equal(row, x)
    np.testing.assert_array_equal(over_i, x.sum(0))
    np.testing.assert_array_equal(over_j, x.sum(1))
    np.testing.assert_array_equal(over_both, x.sum((0, 1)))


@pytest.mark.parametrize("inner_axes", [0, None, 1])
@pytest.mark.needs_devices(2)
def test_an_inner_map_may_have_axes_of_its_own(inner_axes):
    inner = pmapx.pmap(lambda x: lax.psum(x, "j"), "j", out_axes=inner_axes)
    outer = pmapx.pmap(inner, "i", out_axes=pmapx.AUTO)
    x = np.arange(N * 3.0).reshape(N // 2, 2, 3)
    assert outer(x).shape == {0: (N // 2, 2, 3), None: (N // 2, 3), 1: (N // 2, 3, 2)}[inner_axes]


def test_more_elements_than_devices():
    x = np.arange(6.0 * N, dtype=np.float32).reshape(2 * N, 3)
    result = auto(oversubscribe=True)(x)
    assert result["row"].shape == (2 * N, 3)
    np.testing.assert_array_equal(result["total"], x.sum(0))


def test_a_callback_is_not_proven_equal():
    def f(x):
        return jax.pure_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), np.float32))

    assert auto(f)(ROWS).shape == (N,)
    assert pmapx.pmap(f, axis_size=N, out_axes=pmapx.AUTO, in_axes=None)(1.0).shape == (N,)


def test_random_numbers_of_one_key_are_equal():
    def f(key, x):
        own = jax.random.fold_in(key, lax.axis_index("i"))
        return jax.random.normal(key), own

    shared, own = auto(f, in_axes=(None, 0))(jax.random.key(0), ROWS)
    assert (shared.shape, own.shape) == ((), (N,))


def test_static_arguments_and_keywords_are_as_ever():
    f = auto(lambda x, k, *, y: (lax.psum(x, "i") * k, y), static_broadcasted_argnums=1)
    total, rows = f(ROWS, 2, y=ROWS)
    np.testing.assert_array_equal(total, 2 * TOTAL)
    np.testing.assert_array_equal(rows, ROWS)


def test_the_lines_of_the_function_are_still_known():
    text = auto().lower(ROWS).as_text(debug_info=True)
    assert "test_auto_axes.py" in text


def test_an_output_that_is_not_an_array_is_an_error():
    with pytest.raises(errors.OutputNotAnArray):
        auto(lambda x: {"a": "text"})(ROWS)


def test_a_mismatched_out_axes_prefix_is_an_error():
    with pytest.raises(errors.OutAxesNotPrefix):
        pmapx.pmap(lambda x: x, out_axes=(pmapx.AUTO, 0))(ROWS)


def test_it_is_for_outputs_only():
    with pytest.raises(errors.AxesNotIntegers):
        pmapx.pmap(mixed, in_axes=pmapx.AUTO)


def test_there_is_one_of_it():
    assert copy.deepcopy(pmapx.AUTO) is pmapx.AUTO
    assert pickle.loads(pickle.dumps(pmapx.AUTO)) is pmapx.AUTO
    assert repr(pmapx.AUTO) == "pmapx.AUTO"


def test_what_a_primitive_of_a_library_returns_is_not_proven_equal():
    shifted = Primitive("shifted_by_device")
    shifted.def_abstract_eval(lambda x: x)
    by_device = mlir.lower_fun(
        lambda x: x + lax.axis_index("i").astype(x.dtype), multiple_results=False
    )
    mlir.register_lowering(shifted, by_device)

    result = pmapx.pmap(shifted.bind, "i", in_axes=None, axis_size=N, out_axes=pmapx.AUTO)(
        np.float32(1)
    )

    np.testing.assert_array_equal(result, 1 + np.arange(N))
