"""Functions that a program applies to elements: by ``map``, by ``tree_map``, and generators."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Bound, Exported, Function, Named, Value
from pmapx._src.codemod.replicated.groups import OTHER, Abstract, Parts, Ref, refs
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.codemod.replicated.maps import Maps
from pmapx._src.codemod.replicated.stacked_flow import Flow

MAP = frozenset({"builtins.map"})
Functions = list[tuple[Module, ast.FunctionDef | ast.Lambda]]


@dataclasses.dataclass(frozen=True, slots=True)
class Stream(Parts):
    """An iterator or a list of like values; its one item represents them all."""


class AppliedFunctions(Flow):
    """A program whose values are followed into and out of what is applied to them."""

    follows_generators = True

    def __init__(self, modules: Sequence[Module], maps: Maps) -> None:
        # Calls that apply a function to the elements of what else they are given.
        self._applying: dict[ast.AST, list[tuple[Module, ast.Call]]] = {}
        self._methods: dict[str, list[tuple[Module, ast.AST]]] = {}
        super().__init__(modules, maps)
        self._find_applied()
        self.traced_too = self._called_when_traced()

    def _called_when_traced(self) -> set[ast.AST]:
        """Returns the functions that traced functions call, directly or through others."""
        callers: dict[ast.AST, list[tuple[list[ast.AST], bool]]] = {}
        for module in self.modules:
            for node, callees in module.facts.callees.items():
                around = module.functions_around(node)
                is_traced = any(function in self._traced for function in around)
                for function, _ in functions(callees):
                    callers.setdefault(function.node, []).append((around, is_traced))
        found: set[ast.AST] = set()
        while True:
            more = {
                function
                for function, calls in callers.items()
                if any(is_traced or found & set(around) for around, is_traced in calls)
            }
            if more <= found:
                return found
            found |= more

    def _find_applied(self) -> None:
        parts = [(module, each) for module in self.modules for each in module.nodes]
        for module, node in parts:
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef):
                    self._methods.setdefault(part.name, []).append((module, part))
        for module, node in parts:
            if isinstance(node, ast.Call) and self._is_applying(module, node):
                for _, function in self._functions(module, node):
                    self._applying.setdefault(function, []).append((module, node))
                    self.called.add(function)

    def applying(self, function: ast.AST) -> list[tuple[Module, ast.Call]]:
        """Returns the calls that apply a function to the elements of something."""
        return self._applying.get(function, [])

    def _is_applying(self, module: Module, node: ast.Call) -> bool:
        if not node.args or self.is_traced(module, node):
            return False
        called = self._outside_names(module, node)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "map"
        if not called:
            return is_method and len(node.args) == 1
        return called <= MAP | known_names.TREE_MAP

    def _outside_names(self, module: Module, node: ast.Call) -> frozenset[str]:
        """Returns the names of what a call calls itself, without what that calls in turn."""
        callees = self._callee(module, node)
        return frozenset(fact.name for fact in callees if isinstance(fact, Named))

    def _functions(self, module: Module, node: ast.Call) -> Functions:
        """Returns the functions that a call applies, none if one of them is not known."""
        first = node.args[0]
        if isinstance(first, ast.Lambda):
            return [(module, first)]
        found: list[tuple[Module, ast.AST]] = []
        if isinstance(first, ast.Name):
            found = [(each.module, each.node) for each in self.definitions_of(module, first)]
            if len(found) == 1 and isinstance(found[0][1], ast.Name):
                # A lambda with a name.
                value = getattr(module.parent(found[0][1]), "value", None)
                found = [(module, value)] if isinstance(value, ast.Lambda) else []
            elif any(isinstance(definition, ast.alias) for _, definition in found):
                found = self._exported(module, module.env.find(first.id) or frozenset(), "")
        elif isinstance(first, ast.Attribute):
            cls = self._own_class(module, first)
            if cls is not None:
                # Another class may override it.
                several = self._methods.get(first.attr, [])
                found = several if len(several) == 1 and several[0][1] in cls.body else []
            elif isinstance(first.value, ast.Name):
                held = module.env.find(first.value.id) or frozenset()
                found = self._exported(module, held, first.attr)
        if not all(_is_plain(function) for _, function in found):
            return []
        return found  # type: ignore[return-value]

    def _exported(self, module: Module, held: Value, name: str) -> list[tuple[Module, ast.AST]]:
        """Returns the functions of another module that a name, or one in that module, leads to."""
        several = [
            fact
            for each in held
            if isinstance(each, Exported) and bool(each.name) != bool(name)
            for fact in module.project.exported(each.path, each.name or name)
        ]
        found = [(fact.module, fact.node) for fact in several if isinstance(fact, Function)]
        return found if len(found) == len(several) else []  # type: ignore[return-value]

    def _applied(self, module: Module, node: ast.Call) -> Abstract | None:
        """Returns what the function that a call applies gives, None if it is not known."""
        applied = self._functions(module, node)
        if not applied:
            return None
        self.resolved.add(node.args[0])
        found = []
        for home, function in applied:
            if function in self._traced:
                return None
            if isinstance(function, ast.Lambda):
                found.append(self.value(home, function.body))
            else:
                found.append(self._returns(home, function))
        return self._merged(found, module, node)

    def _returns(self, home: Module, function: ast.FunctionDef) -> Abstract:
        def compute() -> Abstract:
            return self._merged((h for h, _ in self.returned(home, function)), home, function)

        return self._once((function, "returns"), compute)

    def _parameter(self, module: Module, node: ast.arg) -> Abstract:
        function = module.parent(module.parent(node))
        applying = self._applying.get(function, [])
        found = [self._element_given(home, call, function, node) for home, call in applying]
        if not isinstance(function, ast.Lambda) and (
            not applying or (function, node.arg) in self.passed
        ):
            found.append(super()._parameter(module, node))
        return self._merged(found, module, node) if found else OTHER

    def _element_given(
        self, module: Module, call: ast.Call, function: ast.AST, node: ast.arg
    ) -> Abstract:
        """Returns what a call that applies a function gives to one of its parameters."""
        arguments = function.args  # type: ignore[attr-defined]
        names = [*arguments.posonlyargs, *arguments.args]
        if names and names[0].arg == "self":
            names = names[1:]
        index = names.index(node) if node in names else -1
        called = self._outside_names(module, call)
        if not called:
            assert isinstance(call.func, ast.Attribute)
            held = self.value(module, call.func.value)
            if isinstance(held, Stream) and index == 0:
                return held.items[0]
            self.escape(held, module, call, "an unknown function is mapped over it")
            return OTHER
        if index < 0 or index + 1 >= len(call.args):
            return OTHER
        held = self.value(module, call.args[index + 1])
        if called <= MAP:
            return self._element(module, held, call.args[index + 1])
        merged = self.graph.joined([held], module.place(call))
        return OTHER if merged is None else Ref(merged.element, True)

    def returned(self, module: Module, function: ast.AST) -> list[tuple[Abstract, ast.Return]]:
        """Returns what the statements of a function return, or yield."""
        if not yields(function):
            return super().returned(module, function)
        found: list[tuple[Abstract, ast.Return]] = []
        for part in _own_parts(function):
            if isinstance(part, ast.Yield) and part.value is not None:
                found.append((self.value(module, part.value), part))  # type: ignore[arg-type]
            elif isinstance(part, ast.YieldFrom):
                held = self.value(module, part.value)
                if list(refs(held)):
                    held = self._element(module, held, part.value)
                found.append((held, part))  # type: ignore[arg-type]
        return found

    def _from(self, module: Module, node: ast.Call, callee: Any) -> Abstract:
        held = super()._from(module, node, callee)
        function = callee.function if isinstance(callee, Bound) else callee
        if isinstance(function, Function) and yields(function.node):
            return Stream((held,)) if list(refs(held)) else OTHER
        return held

    def _lambda(self, module: Module, node: ast.Lambda) -> Abstract:
        if self._is_applied_only(module, node):
            return OTHER
        return super()._lambda(module, node)

    def _is_applied_only(self, module: Module, node: ast.Lambda) -> bool:
        """Returns whether a lambda has a name that is only given to what applies it."""
        applying = {call.args[0] for home, call in self._applying.get(node, ()) if home is module}
        assigned = module.parent(node)
        if not applying or node in self._traced or not isinstance(assigned, ast.Assign):
            return False
        target = assigned.targets[0]
        around = module.functions_around(node)
        scope = around[0] if around else module.source.tree
        return isinstance(target, ast.Name) and all(
            part in applying or not isinstance(part.ctx, ast.Load)
            for part in ast.walk(scope)
            if isinstance(part, ast.Name) and part.id == target.id
        )


def _is_plain(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return isinstance(node, ast.Lambda)
    return not node.decorator_list and not yields(node)


@functools.lru_cache(maxsize=4096)
def yields(function: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in _own_parts(function))


def _own_parts(function: ast.AST) -> Iterable[ast.AST]:
    """Gives the nodes of a function, without those of functions inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        part = waiting.pop(0)
        yield part
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(part)
