"""The calls of each map of a program, in whichever file they are, and what calls pass."""

from __future__ import annotations

import ast
import dataclasses
import weakref

from pmapx._src.analysis.definitions import Definition
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.syntax import given_arguments
from pmapx._src.analysis.values import Bound, Class, Function, Mapped, Place

_Given = tuple[Module, ast.expr]


@dataclasses.dataclass(slots=True)
class _Found:
    """What the files of a project show, by how many there were when they were read."""

    count: int
    calls: dict[Place, list[tuple[Module, ast.Call]]]
    passed: dict[tuple[ast.AST, str], list[_Given]]
    attributes: dict[str, list[Definition]]


_KNOWN: weakref.WeakKeyDictionary[Project, _Found] = weakref.WeakKeyDictionary()


def map_calls(module: Module, site: Site) -> list[tuple[Module, ast.Call]]:
    """Returns the calls of a map, each once."""
    found = _found(module.project).calls
    return list(dict.fromkeys(each for place in site.places for each in found.get(place, ())))


def passed_values(module: Module, function: ast.AST, name: str) -> list[_Given]:
    """Returns what the calls of a function of the program pass for a parameter."""
    return _found(module.project).passed.get((function, name), [])


def attribute_values(module: Module, name: str) -> list[Definition]:
    """Returns what sets an attribute of this name, of whatever object or class."""
    return _found(module.project).attributes.get(name, [])


def _found(project: Project) -> _Found:
    known = _KNOWN.get(project)
    if known is None or known.count != len(project.modules):
        known = _KNOWN[project] = _Found(len(project.modules), {}, {}, {})
        for module in project.modules.values():
            if module is not None:
                _read(module, known)
    return known


def _read(module: Module, found: _Found) -> None:
    for call, callee in module.facts.callees.items():
        for fact in callee if isinstance(call, ast.Call) else ():
            if isinstance(fact, Mapped):
                found.calls.setdefault(fact.site, []).append((module, call))  # type: ignore[arg-type]
            elif isinstance(fact, (Function, Bound)):
                function = fact.function if isinstance(fact, Bound) else fact
                skipped = int(isinstance(fact, Bound))
                for name, arg in given_arguments(call, function.node, skipped):  # type: ignore[arg-type]
                    if name is not None:
                        found.passed.setdefault((function.node, name), []).append((module, arg))
            elif isinstance(fact, Class):
                _read_class_call(module, call, fact, found)  # type: ignore[arg-type]
    for target, definition in module.facts.definitions.assigned.items():
        is_in_class = isinstance(target, ast.Name) and isinstance(
            module.parent(module.parent(target)), ast.ClassDef
        )
        if isinstance(target, ast.Attribute) or is_in_class:
            name = target.attr if isinstance(target, ast.Attribute) else target.id  # type: ignore[attr-defined]
            found.attributes.setdefault(name, []).append(definition)


def _read_class_call(module: Module, call: ast.Call, cls: Class, found: _Found) -> None:
    """Notes what a call of a class passes to ``__init__``, or sets the fields of a dataclass to."""
    made = [n for n in cls.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    for function in made:
        for name, arg in given_arguments(call, function, 1):
            if name is not None:
                found.passed.setdefault((function, name), []).append((module, arg))
    if not made:
        fields = [n.target.id for n in cls.node.body
                  if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]  # fmt: skip
        given = [*zip(fields, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for field, arg in given:
            if field is not None:
                found.attributes.setdefault(field, []).append(Definition(arg, module, arg))
