"""Arguments and outputs in the caller's own words, for errors and reports."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax


class Abstract(NamedTuple):
    """Shape, type and weakness of one leaf: all that a program's signature holds of it."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool

    def __str__(self) -> str:
        """Writes it as JAX does, e.g. ``float32[8,128]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def function_name(fun: Callable[..., Any]) -> str:
    """Names a function, also one hidden in partials, bound methods and callable objects."""
    while not hasattr(fun, "__name__") and hasattr(fun, "func"):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def source_of(fun: Callable[..., Any]) -> Any:
    """Returns what JAX needs to name the file and line of a function, and does not hold it."""
    name = function_name(fun)
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    code = getattr(fun, "__code__", None) or getattr(type(fun).__call__, "__code__", None)
    return None if code is None else types.SimpleNamespace(__code__=code, __name__=name)


def name_source(wrapper: Callable[..., Any], source: Any) -> None:
    """Makes JAX's messages name the user's function, ``source_of`` it, and not one around it."""
    if source is not None:
        wrapper.__signature__ = inspect.signature(wrapper)  # type: ignore[attr-defined]
        wrapper.__wrapped__ = source  # type: ignore[attr-defined]


def parameter_names(fun: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the positional parameters; () when the function tells none."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional)


def argument(position: int, names: Sequence[str], path: str = "") -> str:
    """Describes a positional argument, e.g. ``argument 1 'batch' at ['image']``."""
    name = f" '{names[position]}'" if position < len(names) else ""
    return f"argument {position}{name}" + (f" at {path}" if path else "")


def leaf(
    index: int, tree: jax.tree_util.PyTreeDef, positions: Sequence[int], names: Sequence[str]
) -> str:
    """Describes leaf ``index`` of ``(args, kwargs)``; ``positions`` are the caller's numbers."""
    stand_in = jax.tree.unflatten(tree, range(tree.num_leaves))
    path, _ = jax.tree_util.tree_flatten_with_path(stand_in)[0][index]
    in_keywords, which, *rest = path
    inner = jax.tree_util.keystr(tuple(rest))
    if in_keywords.idx == 1:
        return f"keyword argument {which.key!r}" + (f" at {inner}" if inner else "")
    return argument(positions[which.idx], names, inner)


def output(index: int, result: Any) -> str:
    """Describes leaf ``index`` of a result, e.g. ``output ['loss']``."""
    path, _ = jax.tree_util.tree_flatten_with_path(result)[0][index]
    return f"output {jax.tree_util.keystr(path)}" if path else "the output"


def prefix_difference(prefix: Any, full: Any, root: str) -> str:
    """Says where ``prefix`` stops being a tree prefix of ``full``, and how."""
    is_axis = lambda x: x is None
    found = _first_difference(
        jax.tree.structure(prefix, is_leaf=is_axis), jax.tree.structure(full), root
    )
    return found or f"pytree structure error: different structures at key path\n    {root}"


def _keys(node_data: Any) -> str:
    kind, keys = node_data
    return f" with keys {', '.join(map(repr, keys))}" if kind is dict else ""


def _first_difference(
    prefix: jax.tree_util.PyTreeDef, full: jax.tree_util.PyTreeDef, path: str
) -> str | None:
    expected, found = prefix.node_data(), full.node_data()
    if expected is None:
        return None
    expected_type, expected_keys = expected
    found_type, found_keys = found if found is not None else (None, None)
    where = f"at key path\n    {path}"
    expected_name = getattr(expected_type, "__name__", "None")
    if expected_type is not found_type:
        found_name = "a leaf" if found is None else getattr(found_type, "__name__", "None")
        return (
            f"pytree structure error: different types {where}\n"
            f"The prefix has type {expected_name} there, the full pytree has {found_name}."
        )
    children, full_children = prefix.children(), full.children()
    if len(children) != len(full_children):
        return (
            f"pytree structure error: different lengths of {expected_name} {where}\n"
            f"The prefix has length {len(children)}{_keys(expected)} there, the full pytree has "
            f"length {len(full_children)}{_keys(found)}."
        )
    if expected_keys != found_keys:
        return (
            f"pytree structure error: different keys or metadata {where}\n"
            f"The prefix has {expected_keys!r} there, the full pytree has {found_keys!r}."
        )
    keys: Sequence[Any] = range(len(children))
    if expected_type is dict:
        keys = expected_keys
    for key, child, full_child in zip(keys, children, full_children, strict=True):
        difference = _first_difference(child, full_child, f"{path}[{key!r}]")
        if difference:
            return difference
    return None
