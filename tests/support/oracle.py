"""What a pmap must compute, said with `jax.vmap` alone, and how a result is compared with it."""

import jax
import jax.numpy as jnp
import numpy as np


def by_vmap(fun, axis_name=None, *, in_axes=0, out_axes=0, axis_size=None):
    """`fun` mapped by `jax.vmap`; an output with the axis None is its first element."""

    def mapped(*args, **kwargs):
        axes = (in_axes,) * len(args) if in_axes is None or isinstance(in_axes, int) else in_axes
        size = mapped_size(axes, args, kwargs) if axis_size is None else axis_size
        rows = jax.vmap(
            lambda _, args, kwargs: fun(*args, **kwargs),
            in_axes=(0, tuple(axes), 0),
            axis_name=axis_name,
        )(jnp.arange(size), args, kwargs)
        return jax.tree.map(
            lambda axis, subtree: jax.tree.map(lambda x: _place(x, axis), subtree),
            out_axes,
            rows,
            is_leaf=lambda axis: axis is None,
        )

    return mapped


def mapped_size(axes, args, kwargs):
    """The size of the first mapped axis among the arguments."""
    sizes = []

    def record(axis, subtree):
        if axis is not None:
            sizes.extend(np.shape(x)[axis] for x in jax.tree.leaves(subtree))

    jax.tree.map(record, tuple(axes), tuple(args), is_leaf=lambda axis: axis is None)
    record(0, kwargs)
    return sizes[0]


def _place(x, axis):
    return x[0] if axis is None else jnp.moveaxis(x, 0, axis)


def assert_same(actual, expected, *, rtol=0.0, atol=0.0):
    """Same tree, shapes, dtypes, weak types and values; to the bit unless a tolerance is given."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    paths_and_expected = jax.tree_util.tree_leaves_with_path(expected)
    for got, (path, wanted) in zip(jax.tree.leaves(actual), paths_and_expected, strict=True):
        where = jax.tree_util.keystr(path)
        assert np.shape(got) == np.shape(wanted), f"shape at {where}"
        assert got.dtype == wanted.dtype, f"dtype at {where}"
        if hasattr(wanted, "weak_type"):
            assert got.weak_type == wanted.weak_type, f"weak type at {where}"
        if wanted.dtype == jax.dtypes.float0:
            continue
        got, wanted = _as_numpy(got), _as_numpy(wanted)
        if rtol or atol:
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=where)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=where)


def _as_numpy(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)
