"""Attributes that ``getattr``, ``setattr`` or ``vars`` read or set, by names that are computed."""

from __future__ import annotations

import ast
import os
import re
import weakref
from collections.abc import Set

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.values import Exported, Named
from pmapx._src.source import files

# A word in quotes, also in the JSON of a notebook.
_WORD = re.compile(rb"""['"](\w+)\\?['"]""")
# What a name is put together from: f"_{name}", "_" + name, "_%s" % name, "_{}".format(name).
_BEGINNING = re.compile(rb"""['"](\w+)(?:[{%]|\\?['"]\s*\+)""")
_ENDING = re.compile(rb"""(?:\}|%s|\+\s*['"])(\w+)\\?['"]""")
# What lists the names of an object's attributes.
_LISTING = re.compile(r"\bdir\(|\bgetmembers\b|\bfields\(|\b_fields\b|\b__slots__\b|\b__dict__\b")
# These read or set attributes of an object, whose names may be in a variable.
_BY_NAME = frozenset(
    {
        "builtins.getattr", "builtins.setattr", "builtins.vars", "builtins.delattr",
        "operator.attrgetter",
    }
)  # fmt: skip


class Words:
    """The words that a program's files have in quotes."""

    def __init__(self, project: Project) -> None:
        self._known: dict[str, bool] = {}
        self._words: set[bytes] = set()
        self._beginnings: set[bytes] = set()
        self._endings: set[bytes] = set()
        for path in project.paths.values():
            data = files.read_bytes(path)
            if isinstance(data, bytes):
                self._words.update(_WORD.findall(data))
                self._beginnings.update(_BEGINNING.findall(data))
                self._endings.update(_ENDING.findall(data))

    def may_give(self, name: str) -> bool:
        """Returns whether a text that the program computes may be a name."""
        if name not in self._known:
            self._known[name] = self._may_give(name.encode())
        return self._known[name]

    def _may_give(self, text: bytes) -> bool:
        return (
            text in self._words
            or any(text.startswith(each) for each in self._beginnings)
            or any(text.endswith(each) for each in self._endings)
        )


_WORDS: weakref.WeakKeyDictionary[Project, Words] = weakref.WeakKeyDictionary()
_LISTS: weakref.WeakKeyDictionary[Module, bool] = weakref.WeakKeyDictionary()


def may_name(module: Module, given: object, name: str) -> bool:
    """Returns whether code may read an attribute: by a given name, a computed one, or any.

    A computed one, ``...``, is in quotes somewhere, unless objects list their attributes.
    """
    if given is not ...:
        return given in (None, name)
    if module not in _LISTS:
        _LISTS[module] = _LISTING.search(module.source.text) is not None
    if _LISTS[module]:
        return True
    if module.project not in _WORDS:
        _WORDS[module.project] = Words(module.project)
    return _WORDS[module.project].may_give(name)


def reads_by_name(module: Module, call: ast.Call, called: Set[str]) -> bool:
    """Returns whether a call reads or sets attributes of an object that are not followed."""
    if not called <= _BY_NAME or _is_module(module, call.args[0]):
        return False
    return not _hands_on_name(module, call)


def name_given(call: ast.Call) -> object:
    """Returns the name that ``getattr`` is given, ... for one that is computed, None for none."""
    match call.args:
        case [ast.Constant(value=str(path))]:
            # ``operator.attrgetter("state.params")``
            return path.partition(".")[0]
        case [_] | [ast.Constant(), *_]:
            return None
    name = call.args[1]
    return name.value if isinstance(name, ast.Constant) else ...


def _is_module(module: Module, node: ast.expr) -> bool:
    """Returns whether an expression is an imported module, whose names are not attributes."""
    if isinstance(node, ast.Attribute):
        # ``jax.nn``: what a library has.
        while isinstance(node, ast.Attribute):
            node = node.value
        found = module.env.find(node.id) if isinstance(node, ast.Name) else None
        return bool(found) and all(isinstance(fact, Named) for fact in found or ())
    found = module.env.find(node.id) if isinstance(node, ast.Name) else None
    return bool(found) and all(
        isinstance(fact, Named) or (isinstance(fact, Exported) and _is_file(fact))
        for fact in found or ()
    )


def _is_file(fact: Exported) -> bool:
    """Returns whether what is imported is a module: itself, or one of its package."""
    folder, name = os.path.split(fact.path)
    is_below = name == "__init__.py" and os.path.exists(os.path.join(folder, f"{fact.name}.py"))
    return not fact.name or is_below


def _hands_on_name(module: Module, node: ast.Call) -> bool:
    """Returns whether ``__getattr__`` asks another object for the name that it was asked for.

    The name is written where the attribute is read, and that is followed there.
    """
    function = next(iter(module.functions_around(node)), None)
    if not isinstance(function, ast.FunctionDef) or len(node.args) < 2:
        return False
    names = [each.arg for each in function.args.args]
    return (
        function.name in ("__getattr__", "__getattribute__")
        and isinstance(module.parent(function), ast.ClassDef)
        and isinstance(node.args[1], ast.Name)
        and names[1:2] == [node.args[1].id]
    )
