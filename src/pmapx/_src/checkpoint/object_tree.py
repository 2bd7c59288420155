"""The leaves of Python objects: containers, registered pytrees, namedtuples and dataclasses.

They are named as users write them, ``params['dense']['kernel']``.
"""

import collections
import copy
import dataclasses
import difflib
import gc
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from pmapx._src.checkpoint.base import Change, CheckpointError

# The name of the only leaf of a checkpoint that is an array.
ROOT = "array"


def item(parent: str, key: Any) -> str:
    """Returns the path of ``parent[key]``; at the top, the name alone.

    >>> item(item("", "params"), "dense"), item("", 0), item("", "params/dense")
    ("params['dense']", '[0]', "['params/dense']")
    """
    is_name = isinstance(key, str) and key.isidentifier()
    if is_name and (not parent or parent.endswith("/")):
        return f"{parent}{key}"
    return f"{parent}[{key!r}]"


def attribute(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent and not parent.endswith("/") else f"{parent}{name}"


def child(parent: str, key: Any) -> str:
    """Returns the path of a child that JAX names with an entry of a key path."""
    if isinstance(key, jax.tree_util.GetAttrKey):
        return attribute(parent, key.name)
    if isinstance(key, jax.tree_util.SequenceKey):
        return item(parent, key.idx)
    return item(parent, getattr(key, "key", key))


def matches(pattern: str, path: str) -> bool:
    """Returns whether a pattern names a leaf or something that the leaf is in; ``*`` is any text.

    >>> matches("params", "params['dense']"), matches("*.rng", "state.rng")
    (True, True)
    >>> matches("par", "params")
    False
    """
    any_text = ".*".join(map(re.escape, pattern.replace('"', "'").split("*")))
    return re.fullmatch(rf"{any_text}([.\[/].*)?", path, re.DOTALL) is not None


def named(patterns: Sequence[str], paths: Iterable[str], option: str) -> set[str]:
    """Returns the paths that one of the patterns names; each pattern must name one."""
    paths = list(paths)
    found: set[str] = set()
    for pattern in patterns:
        here = {path for path in paths if matches(pattern, path)}
        if not here:
            closest = difflib.get_close_matches(pattern, paths, 1, 0.3) or paths[:1]
            hint = f"; the closest is {closest[0]}" if closest else ""
            raise CheckpointError(f"{option} {pattern!r} matches no leaf{hint}")
        found |= here
    return found


def map_leaves(change: Change, tree: Any, path: str = "") -> Any:
    """Returns a copy of ``tree`` with ``change(path, leaf)`` in place of each leaf.

    An array that is referenced twice is changed twice; ``tree`` itself stays as it is.

    >>> map_leaves(lambda path, leaf: path, {"params": {"w": 1.0}, "steps": [1, 2]})
    {'params': {'w': "params['w']"}, 'steps': ['steps[0]', 'steps[1]']}
    """
    return _map(change, tree, path, ())


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def note(place: str, leaf: Any) -> Any:
        found.append((place, leaf))
        return leaf

    map_leaves(note, tree, path)
    return iter(found)


def holds_arrays(leaf: Any) -> bool:
    """Returns whether an object that is not walked is or refers to an array."""
    seen, waiting = set(), [leaf]
    while waiting:
        found = waiting.pop()
        # Functions refer to their modules, modules to everything.
        if id(found) in seen or isinstance(found, type | types.ModuleType | types.FunctionType):
            continue
        if isinstance(found, np.ndarray) and found.dtype.hasobject:
            waiting += found.flat
        elif isinstance(found, np.ndarray | jax.Array):
            return True
        seen.add(id(found))
        waiting += gc.get_referents(found)
    return False


def _map(change: Change, tree: Any, path: str, inside: tuple[int, ...]) -> Any:
    if id(tree) in inside:
        raise CheckpointError(f"{path} refers to an object that contains it")
    inside = (*inside, id(tree))
    go = lambda key, value: _map(change, value, item(path, key), inside)
    at = lambda name: _map(change, getattr(tree, name), attribute(path, name), inside)
    new: Any
    # Not through JAX, which sorts the keys of dictionaries, and refuses some.
    if type(tree) in (dict, collections.OrderedDict, collections.defaultdict):
        return _with_items(tree, go)
    if type(tree) in (list, tuple):
        return type(tree)([go(index, value) for index, value in enumerate(tree)])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(at, tree._fields))
    if tree is None or isinstance(tree, np.ndarray | jax.Array):
        return change(path or ROOT, tree)
    # Before dataclasses: a registered one has static fields.
    structure: Any
    keyed, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if not jax.tree_util.treedef_is_leaf(structure):
        children = ((child(path, *key), value) for key, value in keyed)
        return structure.unflatten([_map(change, value, at, inside) for at, value in children])
    if isinstance(tree, dict):
        return _with_items(tree, go)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        new = copy.copy(tree)
        for field in dataclasses.fields(tree):
            if hasattr(tree, field.name):
                object.__setattr__(new, field.name, at(field.name))
        return new
    return change(path or ROOT, tree)


def _with_items(tree: dict[Any, Any], go: Callable[[Any, Any], Any]) -> dict[Any, Any]:
    new = copy.copy(tree)
    for key, value in tree.items():
        new[key] = go(key, value)
    return new
