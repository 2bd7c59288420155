"""Leaves of the trees that array functions take: checked before use, named in errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src import errors
from pmapx._src.trees.names import Abstract


def concrete(function: str, root: str, tree: Any) -> tuple[list[Any], Any]:
    """Flattens a tree of arrays; refuses tracers and what is not an array, naming the leaf."""
    leaves, structure = jax.tree.flatten(tree)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, jax.core.Tracer):
            raise errors.NotConcrete(function, name(root, tree, index), str(abstract(leaf)))
        try:
            jax.typeof(leaf)
        except TypeError:
            raise errors.NotAnArrayLeaf(function, name(root, tree, index), leaf) from None
    return leaves, structure


def name(root: str, tree: Any, index: int) -> str:
    """Names leaf ``index`` of an argument, e.g. ``x['params']['w']``."""
    path, _ = jax.tree_util.tree_flatten_with_path(tree)[0][index]
    return root + jax.tree_util.keystr(path)


def abstract(leaf: Any) -> Abstract:
    """Returns the shape and type that a leaf has as an array of JAX."""
    aval = jax.typeof(leaf)
    return Abstract(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)))


def is_on_host(leaf: Any) -> bool:
    """Whether a leaf is a numpy array or a Python number, so that it is sliced on the host."""
    return isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex)


def is_key(x: Any) -> bool:
    """Whether ``x``, or its type, is an array of typed PRNG keys."""
    return isinstance(x, jax.Array | jax.core.ShapedArray) and bool(
        jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )
