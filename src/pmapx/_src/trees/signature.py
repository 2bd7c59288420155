"""The arguments of a call, the signature that its program depends on, and what a program takes.

JAX flattens and rebuilds the arguments of a jitted function several times: from shapes when it is
traced ahead of time, from descriptions when it is lowered. A class whose constructor looks at its
children, or whose flattening depends on them, does not survive that. So an argument is passed as
``NamedLeaves``: its leaves, which keep the names that they have in the user's tree. The user's
objects are rebuilt once, of tracers, around the user's function.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapx._src import errors
from pmapx._src.trees import names
from pmapx._src.trees.names import Abstract, KeyPath

_WIDE = frozenset(map(np.dtype, ("float64", "int64", "uint64", "complex128")))


class KeyPaths(tuple[names.KeyPath, ...]):
    """The key path of each leaf of a call's ``(args, kwargs)``, to name it.

    Programs do not depend on names, so all key paths compare equal. Only objects of custom classes
    know the names of their children, so the paths are read from the arguments of the call.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyPaths)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return 0


class Signature(NamedTuple):
    """What a program depends on in a call: not the placement of the inputs, nor their values."""

    static: tuple[tuple[type, Any], ...]
    positions: tuple[int, ...]
    tree: jax.tree_util.PyTreeDef
    leaves: tuple[Abstract, ...]
    paths: KeyPaths


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    signature: Signature
    args: tuple[Any, ...]  # Those that are not static.
    kwargs: dict[str, Any]
    leaves: list[Any]  # Of both, as the program takes them.
    has_narrowed: bool = False  # Whether some are 32-bit copies of 64-bit arrays.


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the arguments of calls of one function."""

    function: str
    parameters: tuple[str, ...]
    static_argnums: tuple[int, ...]

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Separates static arguments, flattens the others, and finds their types."""
        static_argnums = self.static_argnums
        static: tuple[tuple[type, Any], ...] = ()
        positions = tuple(range(len(args)))
        if static_argnums:
            self.check_static(args, kwargs)
            static = tuple((type(args[index]), args[index]) for index in static_argnums)
            positions = tuple(index for index in positions if index not in static_argnums)
        dynamic = tuple(args[index] for index in positions)
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        paths = KeyPaths(names.key_paths((dynamic, kwargs), tree))
        abstracts = []
        has_narrowed = False
        for index, leaf in enumerate(leaves):
            try:
                aval = jax.typeof(leaf)
            except TypeError:
                if isinstance(leaf, np.ndarray | np.generic) or not hasattr(leaf, "dtype"):
                    name = names.leaf(paths[index], positions, self.parameters)
                    raise errors.NotAnArray(self.function, name, leaf) from None
                aval = leaf  # A ``jax.ShapeDtypeStruct``, in ``lower``.
            weak_type = bool(getattr(aval, "weak_type", False))
            dtype = aval.dtype
            if dtype in _WIDE and jax.dtypes.canonicalize_dtype(dtype) != dtype:
                # Made where 64 bits were enabled, as they are not here.
                dtype = jax.dtypes.canonicalize_dtype(dtype)
                if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
                    leaves[index] = jax.lax.convert_element_type(leaf, dtype)
                    has_narrowed = True
            abstracts.append(Abstract(tuple(aval.shape), dtype, weak_type))
        signature = Signature(static, positions, tree, tuple(abstracts), paths)
        return Call(signature, dynamic, kwargs, leaves, has_narrowed)

    def check_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        static_argnums = self.static_argnums
        for index in static_argnums:
            if index >= len(args):
                missing = names.argument(index, self.parameters)
                by_keyword = index < len(self.parameters) and self.parameters[index] in kwargs
                raise errors.StaticArgumentMissing(
                    self.function, static_argnums, len(args), missing, by_keyword=by_keyword
                )
            try:
                hash(args[index])
            except TypeError:
                name = names.argument(index, self.parameters)
                raise errors.UnhashableStatic(self.function, name, args[index]) from None


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
