"""Leaves named as users write them, ``params['dense']['kernel']``, and patterns for such names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from pmapx._src.checkpoint.base import CheckpointError

# The name of the only leaf of a checkpoint that is an array.
ROOT = "array"


def item(parent: str, key: Any) -> str:
    """Returns the path of ``parent[key]``; a name at the top stands alone.

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
