"""Which results of a pmap are equal on all devices, given the arguments that are."""

from __future__ import annotations

import ast
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence

from pmapx._src.analysis import values as facts
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.syntax import leaf
from pmapx._src.codemod.varying.bodies import Reading
from pmapx._src.codemod.varying.differing import Differing
from pmapx._src.codemod.varying.values import (
    Cause,
    Given,
    Items,
    NotFollowedError,
    Table,
    Value,
    cause_of,
    own_cause,
)

Argument = Cause | Mapping[str, Cause] | None
# What one body stores in an object, another may read: they are read until nothing new varies.
MOST_READINGS = 4


class _Known:
    """What was read of a program, which each round of decisions asks for again."""

    def __init__(self, modules: Sequence[Module], key: object = None) -> None:
        self.key = key
        self.differing = Differing(modules)
        self.results: dict[object, Results] = {}


_KNOWN: weakref.WeakKeyDictionary[Project, _Known] = weakref.WeakKeyDictionary()


class SourceProof:
    """The bodies of all pmapped functions of a program."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = modules

    @functools.cached_property
    def _known(self) -> _Known:
        project = self._modules[0].project if self._modules else None
        if project is None:
            return _Known(self._modules)
        key = (tuple(map(id, self._modules)), len(project.mapped))
        known = _KNOWN.get(project)
        if known is None or known.key != key:
            known = _KNOWN[project] = _Known(self._modules, key)
        return known

    @property
    def differing(self) -> Differing:
        """The functions that may ask for the device's index."""
        return self._known.differing

    @functools.cached_property
    def derived(self) -> dict[str, list[facts.Class]]:
        """All classes of the program by their bases' names."""
        found: dict[str, list[facts.Class]] = {}
        for module in self._modules:
            for held in module.env.names.values():
                for cls in facts.of_kind(held, facts.Class):
                    for base in cls.node.bases:
                        found.setdefault(leaf(base), []).append(cls)
        return found

    @functools.cached_property
    def has_other_axes(self) -> bool:
        """Whether anything but a pmap names an axis."""
        return any(
            isinstance(node, ast.Call)
            and "vmap" in leaf(node.func).lower()
            and any(keyword.arg in ("axis_name", None) for keyword in node.keywords)
            for module in self._modules
            for node in module.nodes
        )

    def varying(
        self,
        module: Module,
        functions: Iterable[facts.Value],
        axis: object,
        arguments: Sequence[Argument],
        rest: Value | None,
    ) -> Results:
        """Reads the functions that a pmap may map; ``arguments`` have why each varies, or None.

        Of an object with fields that vary, an argument has why each of these does.

        ``axis`` is the name of the mapped axis, ... if it is not known. ``rest`` stands for
        what else they may be given, in the place of defaults.
        """
        functions = tuple(functions)
        given = [tuple(a.items()) if isinstance(a, Mapping) else a for a in arguments]
        key = (module, functions, repr(axis), *given, rest and rest.cause, rest is None)
        known = self._known.results
        if key not in known:
            known[key] = self._varying(module, functions, axis, arguments, rest)
        return known[key]

    def _varying(
        self,
        module: Module,
        functions: Sequence[facts.Value],
        axis: object,
        arguments: Sequence[Argument],
        rest: Value | None,
    ) -> Results:
        found = Results(axis)
        for function in functions:
            result = self._read(module, function, axis, arguments, rest)
            if isinstance(result, Cause):
                found.refused = found.refused or result
            else:
                found.add(result)
        return found

    def _read(
        self,
        module: Module,
        function: facts.Value,
        axis: object,
        arguments: Sequence[Argument],
        rest: Value | None,
    ) -> Value | Cause:
        if self.differing.operator:
            return Cause(f"{self.differing.operator}, which may differ between devices,")
        reader = Reading(module, axis, self)
        callee = reader.outside.value(function)
        node = ast.Pass(lineno=0)
        try:
            for _ in range(MOST_READINGS):
                before = [cause_of(each) is None for each in reader.outside.held]
                args = [_argument(each) for each in arguments]
                more = None if rest is None else Value(rest.cause)
                held = reader.call(callee, Given(args, {}, more), node)
                now = [cause_of(each) is None for each in reader.outside.held]
                if before == now[: len(before)] and all(now[len(before) :]):
                    return held
        except NotFollowedError as error:
            return error.cause
        except RecursionError:
            return Cause("a body that is nested too deeply")
        return Cause("what it stores in objects")


class Results:
    """What a pmapped function may give: its results, or why it is not understood."""

    def __init__(self, axis: object) -> None:
        self.refused: Cause | None = None
        self._axis = axis
        self._held: list[Value] = []

    def add(self, held: Value) -> None:
        self._held.append(held)

    def fields(self, index: int) -> tuple[str, frozenset[str]] | None:
        """Returns the fields of a result that vary, if no more does, and what replaces fields."""
        found: set[str] = set()
        methods: set[str] = set()
        for entire in self._held if self.refused is None else ():
            held = entire
            if index >= 0 and isinstance(held, Items) and not held.is_open and not own_cause(held):
                held = held.items[index] if index < len(held.items) else held
            is_object = isinstance(held, Table) and held.method and not own_cause(held)
            if not is_object or cause_of(held.rest) is not None:  # type: ignore[attr-defined]
                return None
            assert isinstance(held, Table)
            methods.add(held.method)
            found |= {name for name, each in held.items.items() if cause_of(each) is not None}
        is_known = len(methods) == 1 and all(map(str.isidentifier, found))
        return (methods.pop(), frozenset(found)) if is_known else None

    def reason(self, index: int) -> str:
        """Returns why a result varies, "" if it does not; -1 is all that is returned."""
        if self.refused is not None:
            return f"{self.refused.what}{_at(self.refused)} is not followed in its source"
        if not self._held:
            return "the function that it maps was not found in the source"
        for held in self._held:
            found, name = _chosen(held, index)
            if found is not None:
                return f"{name} depends on {found.what}{_at(found)}{self._never()}"
        return ""

    def _never(self) -> str:
        if self._axis is None:
            return ", and its pmap names no axis to reduce over"
        over = "the mapped axis" if self._axis is ... else repr(self._axis)
        return f" and is never reduced over {over}"


def _argument(cause: Argument) -> Value:
    if isinstance(cause, Mapping):
        return Table(items={name: Value(each) for name, each in cause.items()}, rest=Value())
    return Value(cause)


def _chosen(held: Value, index: int) -> tuple[Cause | None, str]:
    if index >= 0 and isinstance(held, Items) and not held.is_open and index < len(held.items):
        name = ast.unparse(held.nodes[index]) if index < len(held.nodes) else ""
        found = own_cause(held) or cause_of(held.items[index])
        return found, f"`{name}`" if 0 < len(name) < 40 else "it"
    return cause_of(held), "it"


def _at(cause: Cause) -> str:
    return f" (line {cause.line})" if cause.line else ""
