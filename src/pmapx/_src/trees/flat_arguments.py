"""The arguments as a program takes them: JAX never rebuilds objects of the user's classes.

JAX flattens and rebuilds the arguments of a jitted function several times: from shapes when it is
traced ahead of time, from descriptions when it is lowered. A class whose constructor looks at its
children, or whose flattening depends on them, does not survive that. So an argument is passed as
``NamedLeaves``: its leaves, which keep the names that they have in the user's tree. The user's
objects are rebuilt once, of tracers, around the user's function.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import jax

from pmapx._src.trees.names import KeyPath
from pmapx._src.trees.signature import KeyPaths, Signature


@dataclasses.dataclass(frozen=True, eq=False)
class NamedLeaves:
    """The leaves of one argument, and their key paths in it."""

    leaves: Iterable[Any]
    paths: KeyPaths


@dataclasses.dataclass(frozen=True)
class _PathKey:
    """A key path as one key, so that a leaf has the same name as in the user's tree."""

    path: KeyPath

    def __str__(self) -> str:
        return jax.tree_util.keystr(self.path)


jax.tree_util.register_pytree_with_keys(
    NamedLeaves,
    lambda named: (
        [(_PathKey(path), leaf) for path, leaf in zip(named.paths, named.leaves, strict=True)],
        named.paths,
    ),
    lambda paths, leaves: NamedLeaves(leaves, paths),
    lambda named: (named.leaves, named.paths),
)


def program_tree(signature: Signature) -> jax.tree_util.PyTreeDef:
    """Returns the structure of ``(args, kwargs)`` as a program takes them."""
    args, kwargs = signature.tree.children()
    paths = iter(signature.paths)

    def as_passed(argument: jax.tree_util.PyTreeDef) -> Any:
        # The first two keys lead to the argument itself.
        own = KeyPaths(path[2:] for path in itertools.islice(paths, argument.num_leaves))
        is_leaf = argument.node_data() is None
        return 0 if is_leaf else NamedLeaves([0] * len(own), own)

    positional = tuple(map(as_passed, args.children()))
    _, keywords = kwargs.node_data()
    named = dict(zip(keywords, map(as_passed, kwargs.children()), strict=True))
    return jax.tree.structure((positional, named))
