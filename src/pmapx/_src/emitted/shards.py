"""A function on the leaves of a tree with their axes."""

import jax


def each_leaf(change, axes, tree):
    """Applies change(leaf, axis); axes is a tree prefix, None for no axis."""
    return jax.tree.map(
        lambda axis, part: jax.tree.map(lambda leaf: change(leaf, axis), part),
        axes,
        tree,
        is_leaf=lambda axis: axis is None,
    )
