"""Names of arguments and outputs, for errors and reports."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

KeyPath = tuple[Any, ...]


class Abstract(NamedTuple):
    """Shape, dtype and weak type of one leaf: its part of a program's signature."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool

    def __str__(self) -> str:
        """Writes it as JAX does, e.g. ``float32[8,128]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def function_name(fun: Callable[..., Any]) -> str:
    while not hasattr(fun, "__name__") and hasattr(fun, "func"):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def source_of(fun: Callable[..., Any]) -> Any:
    """Returns what JAX needs to name the file and line of a function, without the function."""
    code, name = code_of(fun), function_name(fun)
    return None if code is None else types.SimpleNamespace(__code__=code, __name__=name)


def code_of(fun: Callable[..., Any]) -> types.CodeType | None:
    """Returns the code behind partials, methods and wrappers; None for what is not in Python."""
    inner: Any = inspect.unwrap(fun)
    while isinstance(inner, functools.partial | types.MethodType):
        within = inner.func if isinstance(inner, functools.partial) else inner.__func__
        inner = inspect.unwrap(within)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def name_source(wrapper: Callable[..., Any], source: Any) -> None:
    """Makes JAX's messages name the user's function, by its ``source_of``, and not ``wrapper``."""
    if source is not None:
        wrapper.__signature__ = inspect.signature(wrapper)  # type: ignore[attr-defined]
        wrapper.__wrapped__ = source  # type: ignore[attr-defined]


def parameter_names(fun: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the positional parameters; () when it has no signature."""
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


def key_paths(values: Any, tree: jax.tree_util.PyTreeDef) -> list[KeyPath]:
    """Returns the key path of each leaf of ``values``, whose structure is ``tree``."""
    try:
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(values)[0]]
    except Exception:  # Whatever a class raises that names its own children.
        paths = []
    return paths if len(paths) == tree.num_leaves else list(key_paths_in(tree))


def key_paths_in(tree: jax.tree_util.PyTreeDef, parent: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the key path of each leaf, as far as the structure alone has it.

    Only objects of a custom class know the names of their children; here they are numbered.
    """
    node = tree.node_data()
    if node is None:
        yield parent
        return
    kind, metadata = node
    children = tree.children()
    keys: Iterable[Any] = map(jax.tree_util.FlattenedIndexKey, range(len(children)))
    if kind is tuple or kind is list:
        keys = map(jax.tree_util.SequenceKey, range(len(children)))
    elif kind is dict:
        keys = map(jax.tree_util.DictKey, metadata)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        keys = map(jax.tree_util.GetAttrKey, kind._fields)
    for key, child in zip(keys, children, strict=True):
        yield from key_paths_in(child, (*parent, key))


def leaf(path: KeyPath, positions: Sequence[int], names: Sequence[str]) -> str:
    """Describes a leaf of ``(args, kwargs)``; ``positions`` are the caller's numbers."""
    in_keywords, which, *rest = path
    inner = jax.tree_util.keystr(tuple(rest))
    if in_keywords.idx == 1:
        return f"keyword argument {which.key!r}" + (f" at {inner}" if inner else "")
    return argument(positions[which.idx], names, inner)


def leaf_paths(arguments: Any, positions: Sequence[int], names: Sequence[str]) -> list[str]:
    """Names the leaves of ``(args, kwargs)`` in the caller's terms.

    >>> leaf_paths((({"w": 1}, 2), {"key": 3}), (0, 2), ("state", "mode", "batch"))
    ["state['w']", 'batch', 'key']
    """
    paths = []
    for path, _ in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        where, which, *rest = path
        if where.idx == 1:
            root = str(which.key)
        else:
            position = positions[which.idx]
            root = names[position] if position < len(names) else f"argument {position}"
        paths.append(root + jax.tree_util.keystr(tuple(rest)))
    return paths


def output(path: KeyPath) -> str:
    """Describes a leaf of a result, e.g. ``output ['loss']``."""
    return f"output {jax.tree_util.keystr(path)}" if path else "the output"


def prefix_difference(prefix: Any, full: jax.tree_util.PyTreeDef, root: str) -> str:
    """Describes where and how ``prefix`` is not a tree prefix of the structure ``full``."""
    is_axis = lambda x: x is None
    structure = jax.tree.structure(prefix, is_leaf=is_axis)
    sides = ("The prefix", "the full pytree")
    found = _first_difference(structure, full, root, sides, is_prefix=True)
    return found or f"pytree structure error: different structures at key path\n    {root}"


def tree_difference(compiled: jax.tree_util.PyTreeDef, called: jax.tree_util.PyTreeDef) -> str:
    """Describes where a call's arguments differ in structure from those compiled for."""
    sides = ("The compiled function", "the call")
    for which, expected, found in zip(
        ("args", "kwargs"), compiled.children(), called.children(), strict=True
    ):
        difference = _first_difference(expected, found, which, sides)
        if difference:
            return difference
    return f"The compiled function takes {compiled}, the call passes {called}."


def _keys(node_data: Any) -> str:
    kind, keys = node_data
    return f" with keys {', '.join(map(repr, keys))}" if kind is dict else ""


def _first_difference(
    expected_tree: jax.tree_util.PyTreeDef,
    found_tree: jax.tree_util.PyTreeDef,
    path: str,
    sides: tuple[str, str],
    *,
    is_prefix: bool = False,
) -> str | None:
    expected, found = expected_tree.node_data(), found_tree.node_data()
    if expected is None and (is_prefix or found is None):
        return None
    expected_type, expected_keys = expected if expected is not None else (None, None)
    found_type, found_keys = found if found is not None else (None, None)
    where = f"at key path\n    {path}"
    expected_name = getattr(expected_type, "__name__", "None")
    if expected_type is not found_type:
        kind = "a leaf" if expected is None else f"type {expected_name}"
        found_name = "a leaf" if found is None else getattr(found_type, "__name__", "None")
        return (
            f"pytree structure error: different types {where}\n"
            f"{sides[0]} has {kind} there, {sides[1]} has {found_name}."
        )
    children, found_children = expected_tree.children(), found_tree.children()
    if len(children) != len(found_children):
        return (
            f"pytree structure error: different lengths of {expected_name} {where}\n"
            f"{sides[0]} has length {len(children)}{_keys(expected)} there, {sides[1]} has "
            f"length {len(found_children)}{_keys(found)}."
        )
    if expected_keys != found_keys:
        return (
            f"pytree structure error: different keys or metadata {where}\n"
            f"{sides[0]} has {expected_keys!r} there, {sides[1]} has {found_keys!r}."
        )
    keys: Sequence[Any] = range(len(children))
    if expected_type is dict:
        keys = expected_keys or ()
    for key, child, found_child in zip(keys, children, found_children, strict=True):
        place = f"{path}[{key!r}]"
        difference = _first_difference(child, found_child, place, sides, is_prefix=is_prefix)
        if difference:
            return difference
    return None
