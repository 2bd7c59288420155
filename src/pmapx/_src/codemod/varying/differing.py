"""Functions of the program that may ask which device they run on, by their names.

A call whose function is not found may be of one of these, if it has the name of one, or if one of
them is handed around as a value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

from pmapx._src.analysis.known_names import FLAX_STATE
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import leaf
from pmapx._src.analysis.values import Bound, Exported, Function, Named
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable

# JAX's functions that do, by the last part of their names.
WORDS = frozenset(
    {
        "axis_index", "ppermute", "pshuffle", "pswapaxes", "all_to_all", "psum_scatter",
        "pure_callback", "io_callback", "host_callback", "id_tap", "ragged_all_to_all",
    }
)  # fmt: skip
_PATTERN = re.compile(rf"\b(?:{'|'.join(sorted(WORDS))})\b".encode())
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What an optimizer of Optax's is made of: two functions.
_OPTIMIZER = "GradientTransformation"
_DEFINITION = re.compile(rb"\bdef apply_gradients\b|\bapply_gradients\s*=")
_OF_DICTS_AND_OPTIMIZERS = frozenset({"get", "items", "keys", "values", "update"})
_CALLED_BY_CLASS = frozenset({"__init__", "__call__", "__new__", "__post_init__"})
# What these make of a function is followed where it is called.
_TRANSFORMS = frozenset(
    {
        "jit", "pmap", "vmap", "grad", "value_and_grad", "checkpoint", "remat", "partial", "scan",
        "cond", "switch", "while_loop", "fori_loop", "tree_map", "map", "isinstance", "issubclass",
        "super",
    }
)  # fmt: skip
Tree = tuple[ast.AST, Module | None]


class Differing:
    """Which names such functions go by."""

    def __init__(self, modules: Iterable[Module]) -> None:
        several = list(modules)
        trees: list[Tree] = [(module.source.tree, module) for module in several]
        project = several[0].project if several else None
        mapped = set() if project is None else {getattr(n, "name", "") for n in project.mapped}
        read = {module.path for module in several}
        optimizers: list[Tree] = []
        self._paths = [*project.paths.values()] if project is not None else []
        self._has_flax_states = any(
            reference.name == FLAX_STATE
            for module in several
            for reference in module.facts.references.values()
        )
        texts = {module.path: module.source.text.encode("utf-8", "replace") for module in several}
        self._defining = {path for path, data in texts.items() if _DEFINITION.search(data)}
        self._alone: dict[str, bool] = {}
        for path in self._paths:
            data = files.read_bytes(path) if path not in read and path.endswith(".py") else None
            is_telling = isinstance(data, bytes) and _PATTERN.search(data)
            if isinstance(data, bytes) and _DEFINITION.search(data):
                self._defining.add(path)
            if isinstance(data, bytes) and (is_telling or _OPTIMIZER.encode() in data):
                source = files.parse(path, data)
                if not isinstance(source, Unreadable):
                    (trees if is_telling else optimizers).append((source.tree, None))
        is_named = len(trees) > len(several) or any(map(_PATTERN.search, texts.values()))
        self._names = _reaching(trees, mapped) if is_named else set()
        self._is_handed_around = any(_is_value(tree, self._names) for tree in trees if is_named)
        self._methods = {
            name
            for tree, _ in (*trees, *optimizers)
            for name in (_stored_as(tree, self._names) if is_named else ())
        }

    def is_flax_step(self, path: str) -> bool:
        """Tells whether ``state.apply_gradients`` of a file can only be that of Flax's TrainState.

        Another script with a method of that name is another program, if no file names either.
        """
        if path not in self._alone:
            stems = {Path(each).stem.encode() for each in (path, *self._defining)}
            word = re.compile(rb"\b(?:%b|import_module)\b" % b"|".join(sorted(stems)))
            found = map(files.read_bytes, self._paths if self._defining else ())
            self._alone[path] = path not in self._defining and not any(
                not isinstance(data, bytes) or word.search(data) for data in found
            )
        return self._has_flax_states and self._alone[path]

    @property
    def is_any(self) -> bool:
        return bool(self._names)

    @property
    def operator(self) -> str:
        """A method such as ``__add__``, which is called without its name, "" if there is none."""
        return min(filter(_is_operator, self._names), default="")

    def may_be(self, name: str) -> bool:
        """Tells whether a function that is not found may differ between devices, by its name."""
        return self._is_handed_around or name in self._names

    def may_be_method(self, name: str) -> bool:
        """Tells the same of a method of an object that is not known.

        What dicts and optimizers have is theirs, unless the program stores such a function so.
        """
        if name in _OF_DICTS_AND_OPTIMIZERS:
            return name in self._names or name in self._methods
        return self.may_be(name)


def _is_operator(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _CALLED_BY_CLASS


def _stored_as(tree: ast.AST, names: Set[str]) -> Iterator[str]:
    """Returns the names that functions get as attributes, of those that may differ."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def may_differ(node: ast.AST) -> bool:
        return leaf(node) in names or _asks(node, names | WORDS)

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and may_differ(node.value):
            yield from (each.attr for each in node.targets if isinstance(each, ast.Attribute))
        elif isinstance(node, ast.keyword) and may_differ(node.value) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Call) and _OPTIMIZER in leaf(node.func):
            given = {leaf(arg) for arg in (*node.args, *(k.value for k in node.keywords))}
            if not given <= defined - names:
                yield from _OF_DICTS_AND_OPTIMIZERS
        elif isinstance(node, ast.Call) and leaf(node.func)[:1].isupper():
            # A class may have its positional arguments as attributes of any name.
            yield from _OF_DICTS_AND_OPTIMIZERS if any(map(may_differ, node.args)) else ()


def _reaching(trees: Iterable[Tree], mapped: Set[str]) -> set[str]:
    """Returns the names of all definitions that lead to such a function, but through a map."""
    # By name, and the names that a file has for functions inside of functions.
    named: dict[str, list[ast.AST]] = {}
    inner: dict[tuple[ast.AST, str], list[ast.AST]] = {}
    used: dict[ast.AST, set[str | ast.AST]] = {}
    homes: dict[ast.AST, ast.AST] = {}
    for tree, module in trees:
        data = _data_parameters(tree)
        for node, is_inner in _definitions(tree):
            found = _used_in(node, module, data)
            names = {node.name, *(getattr(each, "name", each) for each in found)}
            # What makes or calls maps is not called in a body.
            if not names & {"pmap", *mapped}:
                table: Any = inner if is_inner else named
                table.setdefault((tree, node.name) if is_inner else node.name, []).append(node)
                used[node], homes[node] = found, tree
    users: dict[ast.AST, list[ast.AST]] = {}
    for node, found in used.items():
        for each in found:
            several: Iterable[ast.AST] = (each,) if isinstance(each, ast.AST) else ()
            if isinstance(each, str):
                several = (*named.get(each, ()), *inner.get((homes[node], each), ()))
            for definition in several:
                users.setdefault(definition, []).append(node)
    lambdas = {name for tree, _ in trees for name in _lambdas(tree)}
    waiting = [node for node, found in used.items() if found & (WORDS | lambdas)]
    reached = set(waiting)
    while waiting:
        new = [each for each in users.get(waiting.pop(), ()) if each not in reached]
        reached.update(new)
        waiting += new
    return {node.name for node in reached} | lambdas  # type: ignore[attr-defined]


def _lambdas(tree: ast.AST) -> Iterator[str]:
    """Returns the names that are given to lambdas which ask for the device's index."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _asks(node.value, WORDS):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))


def _asks(node: ast.AST, names: Set[str]) -> bool:
    """Tells whether a node is a lambda that uses any of the functions."""
    return isinstance(node, ast.Lambda) and any(leaf(part) in names for part in ast.walk(node.body))


def _definitions(tree: ast.AST) -> Iterator[tuple[Any, bool]]:
    """Returns all definitions of a file, and whether each is inside a function."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_inner = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            yield node, is_inner
            # The methods of a class are reached through its objects, wherever it is.
            is_inner = not isinstance(node, ast.ClassDef)
        waiting += [(each, is_inner) for each in ast.iter_child_nodes(node)]


def _data_parameters(tree: ast.AST) -> set[ast.AST]:
    """Returns the uses of parameters that are called ``axis_index`` or so, and are never called."""
    found: set[ast.AST] = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            names = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            names &= WORDS
            inside = list(ast.walk(function)) if names else []
            names -= {leaf(each.func) for each in inside if isinstance(each, ast.Call)}
            found.update(each for each in inside if isinstance(each, ast.Name) and each.id in names)
    return found


def _used_in(definition: ast.AST, module: Module | None, data: Set[ast.AST]) -> set[str | ast.AST]:
    """Returns what a definition uses itself: definitions, and names where it is not seen which.

    Functions in it are definitions, too. ``data`` are names of values.
    """
    found: set[str | ast.AST] = set()
    is_class = isinstance(definition, ast.ClassDef)
    waiting = _parts(definition)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINITIONS) and not is_class:
            continue
        called = _called(node, module) if isinstance(node, ast.Call) else None
        if called is not None and isinstance(node, ast.Call):
            found |= called
            waiting += [*node.args, *node.keywords]
            continue
        if node not in data and not _is_own_of_base(node, definition):
            found.add(leaf(node))
        waiting += _parts(node)
    return found - {""}


def _is_own_of_base(node: ast.AST, definition: ast.AST) -> bool:
    """Tells whether a name is that of ``super().__init__``, in the method that takes its place.

    A class leads to what its bases lead to, and the method of the base has the same name.
    """
    is_super = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Call)
        and leaf(node.value.func) == "super"
    )
    return is_super and (
        isinstance(definition, ast.ClassDef) or leaf(node) == definition.name  # type: ignore[attr-defined]
    )


def _parts(node: ast.AST) -> list[ast.AST]:
    """Returns the nodes in a node, without its annotations."""
    return [
        part
        for field, held in ast.iter_fields(node)
        if field not in ("annotation", "returns")
        for part in (held if isinstance(held, list) else [held])
        if isinstance(part, ast.AST)
    ]


def _called(call: ast.Call, module: Module | None) -> set[str | ast.AST] | None:
    """Returns the definition that a call surely calls, none of a library's; None if not known."""
    callees = list(module.facts.callees.get(call, ())) if module is not None else []
    if callees and all(isinstance(fact, Named) for fact in callees):
        leaves = {fact.name.rpartition(".")[2] for fact in callees if isinstance(fact, Named)}
        return {name for name in leaves if name in WORDS or name == "pmap"}
    if len(callees) == 1 and isinstance(callees[0], Function):
        function = callees[0]
        return {function.node} if function.name == leaf(call.func) else None
    return None


def _is_value(tree: Tree, names: Set[str]) -> bool:
    """Tells whether any of the functions is used other than by a call or a transformation."""
    followed: set[int] = set()
    waiting = [tree[0]]
    held: list[ast.AST] = []
    lambdas: list[ast.AST] = []
    while waiting:
        node = waiting.pop()
        waiting += _parts(node)
        held += [node] if leaf(node) in names else []
        lambdas += [node] if _asks(node, names | WORDS) else []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            # A lambda is followed by its name.
            followed.update([id(node.value)] if isinstance(node.value, ast.Lambda) else [])
        if isinstance(node, ast.ClassDef):
            # A class that derives from one is itself among the names.
            followed.update(map(id, node.bases))
        elif isinstance(node, ast.Call):
            followed.add(id(node.func))
            callees = tree[1].facts.callees.get(node) if tree[1] is not None else None
            is_inside = callees and all(isinstance(f, (Function, Bound)) for f in callees)
            if is_inside or leaf(node.func) in _TRANSFORMS:
                followed.update(map(id, (*node.args, *(k.value for k in node.keywords))))
    return any(id(node) not in followed for node in lambdas) or any(
        id(node) not in followed
        and isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
        and _may_be_function(node, tree[1])
        for node in held
    )


def _may_be_function(node: ast.AST, module: Module | None) -> bool:
    """Tells whether a name is a function's: ``config.mixup`` is a setting."""
    if not isinstance(node, ast.Attribute) or module is None:
        return True
    if not isinstance(node.value, ast.Name):
        return False
    held = module.env.find(node.value.id) or frozenset()
    return node.value.id in ("self", "cls") or any(isinstance(f, Exported) for f in held)
