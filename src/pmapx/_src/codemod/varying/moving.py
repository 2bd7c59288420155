"""Functions that only move the leaves of a tree: into other dicts, tuples and objects.

Such a function takes a tree with a leading device axis as it takes one without, and what it gives
has the axis of what it is given. Whatever else may be done with a leaf is refused.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis import values as facts
from pmapx._src.analysis.interpreter.functions import match_arguments
from pmapx._src.codemod.varying.bodies import Reading
from pmapx._src.codemod.varying.calls import fields_of
from pmapx._src.codemod.varying.proof import SourceProof
from pmapx._src.codemod.varying.scopes import Scope
from pmapx._src.codemod.varying.values import (
    Cause,
    Closure,
    Either,
    Fresh,
    Given,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Package,
    Table,
    Type,
    Value,
    cause_of,
    functions_in,
    joined,
    reached,
)

# What these return is a new dict with the leaves of the first argument.
_COPYING = known_names.DICT_COPIES | {
    "flax.traverse_util.flatten_dict", "flax.traverse_util.unflatten_dict",
}  # fmt: skip
# Dicts have a method of that name, too.
_OF_ARRAYS = known_names.ARRAY_ATTRIBUTES - {"copy"}
_OF_NO_LEAF = frozenset({"builtins.isinstance", "builtins.type"})
# It is known where the parts of these go.
_MOVING = (
    ast.AnnAssign, ast.Assign, ast.Attribute, ast.Call, ast.Compare, ast.comprehension, ast.Dict,
    ast.DictComp, ast.Expr, ast.For, ast.IfExp, ast.keyword, ast.List, ast.Return, ast.Subscript,
    ast.Tuple,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """An object of a class, by its fields, with the fields of the parameter that are in each."""

    fields: tuple[tuple[str, frozenset[str]], ...]
    cls: ast.ClassDef


# The fields of the parameter whose leaves a tree has, "" for any; none of an empty dict.
Result = frozenset[str] | Built | tuple["Result", ...]


@dataclasses.dataclass(eq=False, slots=True)
class Leaves(Value):
    """A leaf of a field of the parameter, or a tree of such, which other code may hold, too."""

    field: str = ""


@dataclasses.dataclass(eq=False, slots=True)
class Pairs(Value):
    """The keys and values of a dict, as ``.items()`` gives them."""


@functools.lru_cache(maxsize=4096)
def rearranged(function: facts.Function, parameter: str) -> Result | None:
    """Returns what a function gives of the tree that is its parameter, None if it does more."""
    reader = _Moving(function.module, None, SourceProof(()))
    names = syntax.defaults(function.node.args)
    given = Given(
        [], {name: _leaf("") if name == parameter else Value() for name in names}, Value()
    )
    try:
        held = reader.call(reader.outside.function(function), given, function.node)
        result = reader.result(held)
    except (NotFollowedError, RecursionError):
        return None
    is_given = parameter in names and any(each.value for each in syntax.returns(function.node))
    # What it put into a container of other code is elsewhere, too.
    return result if is_given and cause_of(*reader.outside.held) is None else None


class _Moving(Reading):
    """A reading that refuses all that is done with a tree but to move its leaves.

    A tree has leaves, or is an empty container that may be filled.
    """

    # The parameters that are trees, of a function that calls itself.
    _trees: tuple[ast.AST, set[str]] | None = None

    def _refuse(self, node: ast.AST, *values: Value) -> None:
        if _is_tree(*values):
            raise NotFollowedError(type(node).__name__, getattr(node, "lineno", 0))

    def value(self, scope: Scope, node: ast.expr) -> Value:
        held = super().value(scope, node)
        above = scope.module.parent(node)
        is_moved = isinstance(above, _MOVING) and getattr(above, "test", None) is not node
        is_moved = is_moved and getattr(above, "attr", "") not in _OF_ARRAYS
        if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not):
            is_moved = self._is_mapping(node)
        if not is_moved or not _is_known(held):
            self._refuse(above, held)
        return held

    def _is_mapping(self, node: ast.AST) -> bool:
        """Tells whether the function has looped over the items of a name before."""
        function = self._running[-1] if self._running else None
        if not isinstance(function, ast.FunctionDef) or not isinstance(node, ast.Name):
            return False
        uses = [part for part in syntax.walk(function) if syntax.leaf(part) == node.id]
        loops = [each for each in function.body if isinstance(each, ast.For)]
        return not any(isinstance(getattr(part, "ctx", None), ast.Store) for part in uses) and any(
            ast.unparse(each.iter) == f"{node.id}.items()" and each.lineno < node.lineno
            for each in loops
        )

    def computed(self, node: ast.AST, *values: Value | None) -> Value:
        if isinstance(getattr(node, "op", None), ast.Not):
            # Whether a mapping is empty has nothing to do with its leaves.
            return Fresh()
        self._refuse(node, *(each for each in values if each is not None))
        return super().computed(node, *values)

    def read_classdef(self, scope: Scope, node: ast.ClassDef) -> None:
        raise NotFollowedError(f"class {node.name}", node.lineno)

    def defaults(self, scope: Scope, node: Any) -> dict[str, Value]:
        found = super().defaults(scope, node).items()
        # A container is the same one in all calls.
        return {name: h if isinstance(h, Literal) else Value() for name, h in found}

    def bind(self, scope: Scope, target: ast.expr, held: Value) -> None:
        if isinstance(target, ast.Subscript):
            self._refuse(target, self.value(scope, target.slice))
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            self._add(self.value(scope, target.value), held)
        else:
            super().bind(scope, target, held)

    def store(self, base: Value, given: Sequence[Value]) -> None:
        self._refuse(ast.Store(), base, *given)

    def _add(self, base: Value, held: Value) -> None:
        """Puts a tree, or a pair of a key and a tree, into a container that it made."""
        is_pair = isinstance(held, Items) and len(held.items) == 2 and not _is_tree(held.items[0])
        self.result(held.items[1] if is_pair else held)  # type: ignore[attr-defined]
        for each in reached(base, has_parts=False):
            if isinstance(each, Items):
                each.items[:], each.is_open = [joined([*each.items, held])], True
            elif isinstance(each, Table) and each.cls is None:
                each.rest = joined([held] if each.rest is None else [each.rest, held])
            else:
                raise NotFollowedError("a container of other code", 0)

    def element(self, iterated: Value) -> Value:
        if isinstance(iterated, Pairs):
            return Items(items=[Fresh(), self.values_of(iterated)])
        is_list = isinstance(iterated, Items) and bool(iterated.items)
        return joined(iterated.parts()) if is_list else super().element(iterated)

    def values_of(self, mapping: Value) -> Value:
        if isinstance(mapping, (Either, Pairs)):
            return joined(map(self.values_of, mapping.parts() or mapping.sources))
        if isinstance(mapping, Items) and mapping.is_open:
            return joined(self.part(each, 1, 2) for each in _parts(mapping))
        if isinstance(mapping, Table) and mapping.cls is None:
            return joined(_parts(mapping))
        if not isinstance(mapping, Leaves):
            raise NotFollowedError("what is no dict", 0)
        return mapping

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        if isinstance(base, Leaves):
            return _leaf(base.field or name)
        return super().attribute(base, name, node)

    def item(self, base: Value, index: Value, node: ast.AST) -> Value:
        key = index.value if isinstance(index, Literal) else None
        if isinstance(base, Leaves) and isinstance(key, str):
            return _leaf(base.field or key)
        if isinstance(base, Table) and base.cls is None and isinstance(key, str):
            return self.values_of(base)
        return super().item(base, index, node)

    def _method(
        self, scope: Scope, base: Value, name: str, given: Given, node: ast.Call
    ) -> Value | None:
        is_function = isinstance(base, (Library, Package, Type))
        if is_function or not _is_tree(base, *given.every):
            return super()._method(scope, base, name, given, node)
        match name, given.every:
            case (("append" | "extend" | "update"), [held]) if given.args:
                found = self.element(held) if name == "extend" else held
                self._add(base, self.values_of(held) if name == "update" else found)
                return Literal(value=None)
            case "items", []:
                return Pairs(sources=(base,))
            case (("copy" | "unfreeze"), []):
                return Table(rest=self.values_of(base))
        raise NotFollowedError(f"{name}(...)", node.lineno)

    def call(self, function: Value, given: Given, node: ast.AST) -> Value:
        is_plain = not _is_tree(*given.every) and not functions_in(given.every)
        if is_plain or not isinstance(function, Library):
            return super().call(function, given, node)
        if function.name in _OF_NO_LEAF:
            return Fresh()
        if function.name not in _COPYING or len(given.args) != 1:
            raise NotFollowedError(f"{function.name}(...)", getattr(node, "lineno", 0))
        self._refuse(node, *given.every[1:])
        return Table(rest=self.values_of(given.args[0]))

    def _run(self, closure: Closure, given: Given, node: ast.AST) -> Value:
        """Reads a function of the program; of one that calls itself, what it calls so, too."""
        function, is_inner = closure.node, isinstance(closure.scope, Scope)
        if not _is_tree(*closure.bound, *given.every):
            # What an inner function sees of a tree is in the names around it.
            return super()._run(closure, given, node) if is_inner else Value()
        is_plain = isinstance(function, ast.FunctionDef) and not function.decorator_list
        name = getattr(function, "name", "")
        is_named = node is function or syntax.leaf(getattr(node, "func", node)) == name
        if not is_plain or not is_named or is_inner or closure.bound:
            raise NotFollowedError("a function that may be another", function.lineno)
        if function not in self._running:
            return super()._run(closure, given, node)
        names, *others = match_arguments(function.args, given.args, given.keywords)
        trees = {name: held for name, held in names.items() if _is_tree(held)}
        leaves = [each for held in trees.values() for each in reached(held)]
        is_known = self._trees in (None, (function, {*trees})) and given.rest is None
        is_known = is_known and all(isinstance(each, (Leaves, Either)) for each in leaves)
        if not is_known or any(others):
            raise NotFollowedError("a function that calls itself", function.lineno)
        if self._trees is not None:
            # By induction: it gives leaves of those that it is given, and nothing else.
            return joined(each for each in leaves if isinstance(each, Leaves))
        anything = {name: trees.get(name, Value()) for name in syntax.defaults(function.args)}
        self._trees = function, {*trees}
        held = super()._run(closure, Given([], anything, Value()), node)
        self._trees = None
        self.result(held)
        return held

    def result(self, held: Value) -> Result:
        """Returns where the leaves of a value are from, if it has nothing else."""
        match held:
            case Leaves():
                return frozenset({held.field})
            case Table(cls=facts.Class(node=node)) if _is_record(node):
                names = fields_of(node)
                if {*names} == {*held.items}:
                    fields = ((name, _all(self.result(held.items[name]))) for name in names)
                    return Built(tuple(fields), node)
            case Items() if not any(map(_is_open, reached(held, has_parts=False))):
                return tuple(map(self.result, held.items)) or frozenset()
            case Table(cls=None) | Either() | Literal(value=None):
                return frozenset[str]().union(*(_all(self.result(e)) for e in _parts(held)))
        raise NotFollowedError("what is no part of the tree", 0)


@functools.cache
def _leaf(field: str) -> Leaves:
    return Leaves(Cause("a leaf"), (), field)


def _is_tree(*values: Value) -> bool:
    """Tells whether values have leaves, or are containers that may get some."""
    return any(
        each.cause is not None or (isinstance(each, (Items, Table)) and not each.parts())
        for value in values
        for each in reached(value)
    )


def _is_known(tree: Value) -> bool:
    """Tells whether it is known what a tree is, and not only that it has leaves."""
    several = [*reached(tree)]
    # One of two lists may get more items than it had when they were joined.
    is_list = any(isinstance(e, Items) and any(map(_is_open, e.sources)) for e in several)
    is_mixed = any(each.cause is not None and not isinstance(each, Leaves) for each in several)
    is_kind = isinstance(tree, (Leaves, Pairs, Items, Table, Either))
    return is_kind and not is_list and not is_mixed


def _is_open(value: Value) -> bool:
    return isinstance(value, Items) and value.is_open


def _parts(held: Value) -> list[Value]:
    """Returns what is in a container now, or in any of those that it may be."""
    return [part for each in reached(held, has_parts=False) for part in each.parts()]


def _all(result: Result) -> frozenset[str]:
    if isinstance(result, frozenset):
        return result
    several = result if isinstance(result, tuple) else [each for _, each in result.fields]
    return frozenset[str]().union(*map(_all, several))


def _is_record(cls: ast.ClassDef) -> bool:
    """Tells whether objects of a class are what they are given, by field."""
    made = [each.func if isinstance(each, ast.Call) else each for each in cls.decorator_list]
    is_dataclass = not cls.bases and any("dataclass" in syntax.leaf(each) for each in made)
    return is_dataclass or [syntax.leaf(base) for base in cls.bases] == ["NamedTuple"]
