"""The map itself: what a function sees, and where its results go (A1-A4, A8, A9, A11, A12, A14)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from oracle import assert_same, by_vmap

N = jax.device_count()


def rows(*shape, dtype=jnp.float32):
    return jnp.arange(np.prod(shape), dtype=dtype).reshape(shape)


@pytest.mark.behaviour("A1")
def test_the_function_sees_one_shard_without_the_mapped_axis():
    seen = []

    def double(x):
        seen.append(x.shape)
        return 2 * x

    result = pmapx.pmap(double)(rows(N, 128))

    assert set(seen) == {(128,)}
    assert_same(result, 2 * rows(N, 128))


@pytest.mark.behaviour("A1")
def test_an_element_of_a_vector_has_rank_zero():
    assert_same(pmapx.pmap(lambda x: x[None] + x)(rows(N)), 2 * rows(N)[:, None])


@pytest.mark.behaviour("A2")
@pytest.mark.parametrize(
    ("in_axes", "make_args"),
    [
        (0, lambda: (rows(N, 3), rows(N))),
        (1, lambda: (rows(3, N), rows(2, N))),
        ((0, None), lambda: (rows(N, 3), rows(3))),
        ((None, 0), lambda: (rows(2, 2), rows(N, 2))),
        (({"a": 0, "b": None}, 0), lambda: ({"a": rows(N), "b": rows(4)}, rows(N, 2))),
        (([0, (1, None)], 0), lambda: ([rows(N), (rows(2, N), rows(3))], rows(N))),
        ((0, None), lambda: ((rows(N), {"k": rows(N, 2)}), [rows(2), 3.0])),
        ((None, {"b": 0}), lambda: ([rows(2)], {"b": (rows(N), rows(N, 1))})),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_in_axes_choose_the_axis_of_every_leaf(in_axes, make_args):
    args = make_args()

    def fun(a, b):
        return {"a": jax.tree.map(jnp.sum, a), "b": jax.tree.map(lambda x: x + 1, b)}

    assert_same(pmapx.pmap(fun, in_axes=in_axes)(*args), by_vmap(fun, in_axes=in_axes)(*args))


@pytest.mark.behaviour("A2")
def test_keyword_arguments_are_mapped_over_axis_0():
    def fun(x, *, scale, tree):
        return x * scale + tree["t"].sum()

    call = {"scale": rows(N), "tree": {"t": rows(N, 2)}}

    assert_same(
        pmapx.pmap(fun, in_axes=1)(rows(2, N), **call), by_vmap(fun, in_axes=1)(rows(2, N), **call)
    )


@pytest.mark.behaviour("A2")
def test_only_keyword_arguments_will_do():
    assert_same(pmapx.pmap(lambda *, x: x + 1)(x=rows(N)), rows(N) + 1)


@pytest.mark.behaviour("A2")
def test_one_function_takes_calls_with_and_without_a_keyword():
    doubled = pmapx.pmap(lambda x, bias=None: 2 * x if bias is None else 2 * x + bias)

    assert_same(doubled(rows(N)), 2 * rows(N))
    assert_same(doubled(rows(N), bias=rows(N)), 3 * rows(N))
    assert_same(doubled(rows(N)), 2 * rows(N))


@pytest.mark.behaviour("A2")
def test_an_unmapped_python_scalar_keeps_its_weak_type():
    def fun(x, scale):
        return x.astype(jnp.bfloat16) * scale, scale

    args = (rows(N), 3.0)

    assert_same(pmapx.pmap(fun, in_axes=(0, None))(*args), by_vmap(fun, in_axes=(0, None))(*args))


def assert_axes_agree_with_vmap(in_axis, out_axis):
    x = jnp.moveaxis(rows(N, 2, 3), 0, in_axis)

    def fun(x):
        return x.T + 1

    assert_same(
        pmapx.pmap(fun, in_axes=in_axis, out_axes=out_axis)(x),
        by_vmap(fun, in_axes=in_axis, out_axes=out_axis)(x),
    )


@pytest.mark.behaviour("A3")
@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("out_axis", [0, 1, 2])
def test_inner_axes_in_and_out(in_axis, out_axis):
    assert_axes_agree_with_vmap(in_axis, out_axis)


@pytest.mark.behaviour("A3")
def test_out_axes_may_be_a_prefix_tree():
    def fun(x):
        return x, {"a": (x + 1, 2 * x), "b": lax.psum(x, "i")}

    out_axes = (1, {"a": 0, "b": None})

    assert_same(
        pmapx.pmap(fun, "i", out_axes=out_axes)(rows(N, 4)),
        by_vmap(fun, "i", out_axes=out_axes)(rows(N, 4)),
    )


@pytest.mark.behaviour("A4")
def test_a_negative_out_axis_counts_from_the_end():
    result = pmapx.pmap(lambda x: x + 1, out_axes=-1)(rows(N, 4))

    assert result.shape == (4, N)
    assert_same(result, rows(N, 4).T + 1)


@pytest.mark.behaviour("A4")
@pytest.mark.parametrize("in_axis", [-1, -2, -3])
@pytest.mark.parametrize("out_axis", [-1, -2, -3])
def test_negative_axes_agree_with_vmap(in_axis, out_axis):
    assert_axes_agree_with_vmap(in_axis, out_axis)


@pytest.mark.behaviour("A4")
def test_one_negative_axis_serves_leaves_of_different_rank():
    tree = {"vector": rows(N), "matrix": rows(3, N), "cube": rows(2, 3, N)}

    def fun(tree):
        return jax.tree.map(lambda x: x + 1, tree)

    assert_same(pmapx.pmap(fun, in_axes=-1, out_axes=-1)(tree), fun(tree))


@pytest.mark.behaviour("A4")
def test_a_negative_axis_of_a_square_argument_is_not_mistaken_for_axis_0():
    x = rows(N, N)

    result = pmapx.pmap(lambda row: row, in_axes=-1)(x)

    assert_same(result, x.T)


@pytest.mark.behaviour("A8")
def test_axis_size_alone_is_enough_to_map_nothing():
    result = pmapx.pmap(lambda x: x * lax.axis_index("i"), "i", in_axes=None, axis_size=N)(2.0)

    assert_same(
        result, by_vmap(lambda x: x * lax.axis_index("i"), "i", in_axes=None, axis_size=N)(2.0)
    )


@pytest.mark.behaviour("A8")
def test_a_function_without_arguments_runs_once_per_element():
    result = pmapx.pmap(lambda: lax.psum(lax.axis_index("i"), "i"), "i", axis_size=N)()

    np.testing.assert_array_equal(result, np.full(N, N * (N - 1) // 2))


@pytest.mark.behaviour("A8")
def test_a_tree_without_leaves_counts_as_no_mapped_argument():
    assert_same(
        pmapx.pmap(lambda nothing: jnp.float32(7), axis_size=N)({"empty": (), "none": None}),
        jnp.full(N, jnp.float32(7)),
    )


@pytest.mark.behaviour("A9")
@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("size", sorted({1, 2, N // 2, N - 1} - {0}))
def test_a_smaller_axis_runs_on_the_first_devices(size, devices):
    result = pmapx.pmap(lambda x: x + lax.psum(x, "i"), "i")(rows(size, 2))

    assert result.sharding.device_set == set(devices[:size])
    assert_same(result, by_vmap(lambda x: x + lax.psum(x, "i"), "i")(rows(size, 2)))


@pytest.mark.behaviour("A9")
@pytest.mark.needs_devices(2)
def test_one_function_takes_axes_of_several_sizes():
    total = pmapx.pmap(lambda x: lax.psum(x, "i"), "i")

    for size in [N, 1, 2, N, N - 1, 1]:
        assert_same(total(rows(size)), jnp.full(size, rows(size).sum()))


@pytest.mark.behaviour("A11")
@pytest.mark.needs_devices(2)
def test_element_k_runs_on_the_kth_device_given(devices):
    order = devices[::-1][: max(2, N - 1)]

    result = pmapx.pmap(lambda x: x + lax.axis_index("i"), "i", devices=order)(rows(len(order)))

    assert_same(result, 2 * rows(len(order)))
    for shard in result.addressable_shards:
        assert shard.device == order[shard.index[0].start or 0]


@pytest.mark.behaviour("A11")
@pytest.mark.needs_devices(8)
def test_neighbours_are_neighbours_in_the_given_order(devices):
    order = [devices[k] for k in (5, 2, 7, 0)]
    shift = [(k, (k + 1) % 4) for k in range(4)]

    result = pmapx.pmap(lambda x: lax.ppermute(x, "i", shift), "i", devices=order)(rows(4))

    np.testing.assert_array_equal(result, [3, 0, 1, 2])
    assert result.sharding.device_set == set(order)


@pytest.mark.behaviour("A11")
@pytest.mark.needs_devices(4)
def test_a_smaller_axis_runs_on_the_first_of_the_given_devices(devices):
    order = devices[::-1]

    result = pmapx.pmap(lambda x: -x, devices=order)(rows(2))

    assert result.sharding.device_set == set(order[:2])
    assert_same(result, -rows(2))


@pytest.mark.behaviour("A11")
@pytest.mark.parametrize("collection", [list, tuple, np.array])
def test_devices_may_come_in_any_sequence(collection, devices):
    result = pmapx.pmap(lambda x: -x, devices=collection(devices))(rows(N))

    assert_same(result, -rows(N))


@pytest.mark.behaviour("A11")
def test_backend_names_the_platform():
    result = pmapx.pmap(lambda x: x + 1, backend="cpu")(rows(N))

    assert {device.platform for device in result.sharding.device_set} == {"cpu"}
    assert_same(result, rows(N) + 1)


@pytest.mark.behaviour("A11")
def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises((RuntimeError, ValueError), match="nowhere"):
        pmapx.pmap(lambda x: x, backend="nowhere")(rows(N))


@pytest.mark.behaviour("A12")
def test_static_arguments_are_python_values_in_the_function():
    def repeat(x, times, operation, y):
        for _ in range(times):
            x = operation(x, y)
        return x

    repeated = pmapx.pmap(repeat, static_broadcasted_argnums=(1, 2))

    assert_same(repeated(rows(N), 3, jnp.add, rows(N)), 4 * rows(N))
    assert_same(repeated(rows(N), 0, jnp.add, rows(N)), rows(N))
    assert_same(repeated(rows(N), 2, jnp.maximum, rows(N)), rows(N))


@pytest.mark.behaviour("A12")
def test_in_axes_still_count_the_static_arguments():
    def fun(x, mode, y):
        return x * y if mode == "mul" else x + y

    mapped = pmapx.pmap(fun, in_axes=(1, None, 0), static_broadcasted_argnums=1)

    assert_same(mapped(rows(2, N), "mul", rows(N)), (rows(2, N) * rows(N)).T)
    assert_same(mapped(rows(2, N), "add", rows(N)), (rows(2, N) + rows(N)).T)


@pytest.mark.behaviour("A12")
def test_static_arguments_that_are_equal_share_a_program():
    traces = []

    def fun(x, config):
        traces.append(config)
        return x * config[0]

    mapped = pmapx.pmap(fun, static_broadcasted_argnums=(1,))
    mapped(rows(N), (2, "a"))
    mapped(rows(N), (2, "a"))
    mapped(rows(N), (3, "a"))

    assert traces == [(2, "a"), (3, "a")]


@pytest.mark.behaviour("A12")
def test_equal_static_arguments_of_different_type_compile_separately():
    mapped = pmapx.pmap(lambda x, scale: x * scale, static_broadcasted_argnums=1)
    x = rows(N, dtype=jnp.int32)

    assert mapped(x, 2).dtype == jnp.int32
    assert mapped(x, 2.0).dtype == jnp.float32
    assert mapped(x, True).dtype == jnp.int32


@pytest.mark.behaviour("A12")
def test_an_unhashable_static_argument_is_named():
    mapped = pmapx.pmap(lambda x, config: x, static_broadcasted_argnums=1)

    with pytest.raises(ValueError, match=r"argument 1 'config'"):
        mapped(rows(N), [1, 2])


@pytest.mark.behaviour("A14")
def test_typed_keys_go_in_and_come_out():
    keys = jax.random.split(jax.random.key(0), N)

    def fun(key):
        return key, jax.random.split(key, 3), jax.random.normal(key, (2,))

    assert_same(pmapx.pmap(fun)(keys), by_vmap(fun)(keys))


@pytest.mark.behaviour("A14")
def test_typed_keys_take_inner_axes_and_none():
    keys = jax.random.split(jax.random.key(1), (2, N))

    def fun(keys, shared):
        return keys, jax.random.fold_in(shared, lax.axis_index("i")), shared

    axes = {"in_axes": (1, None), "out_axes": (-1, 0, None)}

    assert_same(
        pmapx.pmap(fun, "i", **axes)(keys, jax.random.key(2)),
        by_vmap(fun, "i", **axes)(keys, jax.random.key(2)),
    )


@pytest.mark.behaviour("A14")
def test_keys_of_another_implementation_keep_it():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), N)

    assert pmapx.pmap(lambda key: key)(keys).dtype == keys.dtype


@pytest.mark.behaviour("A14")
def test_float0_passes_through():
    x = np.zeros((N, 3), jax.dtypes.float0)

    result = pmapx.pmap(lambda x, y: (x, y + 1))(x, rows(N))

    assert result[0].shape == (N, 3)
    assert result[0].dtype == jax.dtypes.float0
    assert_same(result[1], rows(N) + 1)


@pytest.mark.behaviour("A14")
def test_a_gradient_with_respect_to_integers_is_float0_inside_and_outside():
    def loss(k):
        return 2.0 * k.astype(jnp.float32).sum()

    k = rows(N, 2, dtype=jnp.int32)
    inside = pmapx.pmap(jax.grad(loss, allow_int=True))(k)
    outside = jax.grad(lambda k: pmapx.pmap(loss)(k).sum(), allow_int=True)(k)

    assert inside.dtype == outside.dtype == jax.dtypes.float0
    assert inside.shape == outside.shape == (N, 2)


@pytest.mark.behaviour("A14")
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "int4", "bfloat16", "float8_e4m3fn", "complex64", "float16"]
)
def test_every_dtype_is_preserved(dtype):
    x = jnp.asarray(np.arange(2 * N).reshape(N, 2) % 2, dtype=dtype)

    mapped = pmapx.pmap(lambda x: x)

    assert_same(mapped(x), x)
    assert_same(mapped(mapped(x)), x)


@pytest.mark.behaviour("A14")
def test_weak_types_are_kept():
    def fun(x):
        return x * 2, 1.0, 3, x > 0, lax.psum(1, "i")

    weak = jnp.broadcast_to(1.0, N)

    assert weak.weak_type
    assert_same(pmapx.pmap(fun, "i")(weak), by_vmap(fun, "i")(weak))


@pytest.mark.behaviour("A14")
def test_returned_python_and_numpy_scalars_get_a_leading_device_axis():
    def fun(x):
        return np.float16(2), True, 1j

    assert_same(pmapx.pmap(fun)(rows(N)), by_vmap(fun)(rows(N)))


@pytest.mark.behaviour("A14")
def test_none_leaves_and_empty_trees_keep_their_place():
    def fun(tree, nothing):
        assert tree["none"] is None
        assert nothing == ()
        return {"x": tree["x"] + 1, "none": None, "empty": [], "unit": ()}

    result = pmapx.pmap(fun)({"x": rows(N), "none": None}, ())

    assert_same(result, {"x": rows(N) + 1, "none": None, "empty": [], "unit": ()})


@pytest.mark.behaviour("A14")
def test_a_result_without_leaves_is_allowed():
    assert pmapx.pmap(lambda x: {"none": None, "empty": ()})(rows(N)) == {"none": None, "empty": ()}


@pytest.mark.behaviour("A14")
def test_rows_without_elements_are_mapped():
    assert_same(pmapx.pmap(lambda x: (x, x.sum()))(rows(N, 0, 2)), (rows(N, 0, 2), jnp.zeros(N)))


@pytest.mark.behaviour("A14")
def test_64_bit_types_survive_when_they_are_on():
    with jax.enable_x64(True):
        x = np.arange(N, dtype=np.float64)
        result = pmapx.pmap(lambda x: x + 1)(x)
        assert result.dtype == np.float64
    assert pmapx.pmap(lambda x: x + 1)(x).dtype == np.float32


@pytest.mark.behaviour("A14")
def test_one_function_serves_32_and_64_bits_in_turn():
    add_one = pmapx.pmap(lambda x: x + 1)
    x = np.arange(N, dtype=np.float64)

    assert add_one(x).dtype == np.float32
    with jax.enable_x64(True):
        assert add_one(x).dtype == np.float64
    assert add_one(x).dtype == np.float32


@pytest.mark.behaviour("A14")
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("is_placed", [True, False])
def test_an_array_made_under_enable_x64_is_taken_in_32_bits_outside(dtype, is_placed):
    with jax.enable_x64(True):
        x = jnp.arange(N, dtype=dtype)
        if is_placed:
            x = pmapx.pmap(lambda x: x)(x)
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    mapped = pmapx.pmap(lambda x, y: x + y)

    for y in (np.ones(N, narrow), np.full(N, 2, narrow)):
        result = mapped(x, y)
        assert result.dtype == narrow
        np.testing.assert_array_equal(result, np.arange(N) + y)
    assert mapped.eval_shape(x, y).dtype == narrow
    assert jax.jit(mapped)(x, y).dtype == narrow
    with jax.enable_x64(True):
        assert mapped(x, x).dtype == dtype


@pytest.mark.behaviour("A14")
def test_an_array_of_64_bits_is_differentiated_outside_enable_x64():
    with jax.enable_x64(True):
        x = jnp.arange(float(N))
    square = pmapx.pmap(lambda x: x * x)

    np.testing.assert_array_equal(jax.grad(lambda x: square(x).sum())(x), 2 * np.arange(N))


class Owned:
    """A node that is copied whenever it is built, and whose owner is compared by identity."""

    def __init__(self, x, owner):
        self.x, self.owner = x, owner


jax.tree_util.register_pytree_node(
    Owned, lambda node: ((node.x,), node.owner), lambda _, xs: Owned(xs[0], object())
)


def test_nodes_that_do_not_equal_their_copies_are_taken_as_arguments():
    rows = np.arange(N, dtype=np.float32)
    node = Owned(rows, object())
    add = pmapx.pmap(lambda node, x, *, y: node.x + x + y, donate_argnums=1)
    for _ in range(2):
        x = pmapx.pmap(lambda x: x)(rows)
        elsewhere = jax.device_put(rows, jax.devices()[-1])
        np.testing.assert_array_equal(add(node, x, y=elsewhere), 3 * rows)
        assert x.is_deleted()
    assert add.cache_info().compiles == 1
    np.testing.assert_array_equal(jax.jit(lambda x: add(node, x, y=x))(rows), 3 * rows)


@pytest.mark.behaviour("A2")
def test_out_axes_may_be_a_list_for_a_result_that_is_a_list():
    first, second = pmapx.pmap(lambda x: [x, x], out_axes=[0, 1])(rows(N, 3))

    assert_same(first, rows(N, 3))
    assert_same(second, rows(N, 3).T)
