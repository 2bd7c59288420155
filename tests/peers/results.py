"""What a program gave, as numpy, and how two of them are compared."""

import jax
import numpy as np

NOT_HERE = "`make test-peers` has an environment with other people's libraries; this one has not"


def as_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def assert_same_bits(actual, expected):
    assert_close(actual, expected, rtol=0, atol=0)


def assert_close(actual, expected, *, rtol, atol):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    paths = jax.tree.leaves_with_path(actual)
    assert paths, "there is nothing to compare"
    for (path, one), other in zip(paths, jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype, jax.tree_util.keystr(path)
        np.testing.assert_allclose(
            one, other, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path)
        )
