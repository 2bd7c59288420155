"""The arguments as a program takes them: JAX never rebuilds objects of the user's classes.

JAX flattens and rebuilds the arguments of a jitted function several times: from shapes when it is
traced ahead of time, from descriptions when it is lowered. A class whose constructor looks at its
children, or whose flattening depends on them, does not survive that. So an argument with such
objects in it is passed as ``NamedLeaves``: its leaves, which keep the names that they have in the
user's tree. The user's objects are rebuilt once, of tracers, around the user's function.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import jax

from pmapx._src.trees.names import KeyPath
from pmapx._src.trees.signature import KeyPaths, Signature

_PLAIN = (tuple, list, dict, type(None), collections.OrderedDict, collections.defaultdict)


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
    if _is_plain(signature.tree):
        return signature.tree
    args, kwargs = signature.tree.children()
    start = 0
    taken: list[Any] = []
    for argument in (*args.children(), *kwargs.children()):
        end = start + argument.num_leaves
        if _is_plain(argument):
            taken.append(jax.tree.unflatten(argument, [0] * argument.num_leaves))
        else:
            # The first two keys lead to the argument itself.
            paths = KeyPaths(path[2:] for path in signature.paths[start:end])
            taken.append(NamedLeaves([0] * len(paths), paths))
        start = end
    count = len(args.children())
    _, keywords = kwargs.node_data()
    named = dict(zip(keywords, taken[count:], strict=True))
    return jax.tree.structure((tuple(taken[:count]), named))


def _is_plain(tree: jax.tree_util.PyTreeDef) -> bool:
    node = tree.node_data()
    if node is None:
        return True
    return (node[0] in _PLAIN or _is_plain_namedtuple(node[0])) and all(
        map(_is_plain, tree.children())
    )


def _is_plain_namedtuple(kind: type) -> bool:
    if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return False
    maker = next(base for base in kind.__mro__ if "__new__" in vars(base))
    return maker.__base__ is tuple  # What namedtuple made, not what a subclass overrides.
