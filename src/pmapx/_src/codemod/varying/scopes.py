"""The names that a body sees: its own, those of functions around it, and those of its module."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis import values as facts
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.interpreter.frame import Frame
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.scopes import Environment
from pmapx._src.analysis.syntax import leaf
from pmapx._src.codemod.varying.values import (
    Cause,
    Closure,
    Either,
    Gradient,
    Items,
    Library,
    Literal,
    Package,
    Partial,
    Table,
    Type,
    Value,
)

_TRANSPARENT = frozenset(
    {
        "jit", "pmap", "vmap", "checkpoint", "remat", "named_call", "named_scope", "staticmethod",
        "classmethod", "property", "cached_property", "compact", "nowrap", "transparent", "wraps",
        "override", "typechecked", "jaxtyped", "typed", "abstractmethod", "filter_jit",
    }
)  # fmt: skip
# A function that is mapped itself.
MAPPED = "a mapped function"
PROPERTIES = frozenset({"property", "cached_property"})
# A binding of one of these holds no more than the analysis found in it.
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Lambda, ast.Constant, ast.Tuple, ast.List)
Names = dict[str, Value]


class Scope(Environment):
    """The names of one call of a function that is read, within those that the analysis found."""

    names: dict[str, Any]

    def __init__(self, module: Module, around: Environment, node: ast.AST | None = None) -> None:
        super().__init__(around, node)
        self.module = module
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        # The names at each break, and at each continue, a pair for a loop.
        self.exits: list[tuple[list[Names], list[Names]]] = []


class Outside:
    """What stands around the bodies that are read: constants, the same on all devices.

    A name is looked up once, so that what a body stores in its object is seen by others.
    """

    def __init__(self, module: Module) -> None:
        self._frame = Frame(module, module.env)
        self._names: dict[tuple[int | str, str], Value] = {}
        self._objects: dict[facts.Fact, Value] = {}

    @property
    def held(self) -> list[Value]:
        return [*self._names.values(), *self._objects.values()]

    def find(self, scope: Scope, name: str) -> Value:
        """Returns what a name holds in a body."""
        owner = scope.scope_of(name)
        if isinstance(owner, Scope):
            held: Value = owner.names[name]
            return held
        return self._name(scope.module, owner, name)

    def _name(self, module: Module, owner: Environment | None, name: str) -> Value:
        key = (id(owner or module), name)
        if key not in self._names:
            if owner is None:
                found = lookup.name_value(Frame(module, module.env), name)
            else:
                found = lookup.looked_up(self._frame, owner.names[name])
            is_all = owner is None or _is_bound_once(module, owner, name)
            if owner is module.env and name in set_from_outside(module.project):
                is_all = False
            self._names[key] = self.value(found, is_all=is_all)
        return self._names[key]

    def name_of(self, path: str, name: str) -> Value:
        """Returns what a name of another module of the program holds."""
        project = self._frame.module.project
        home = project.module(path)
        if home is not None and name in home.env.names:
            return self._name(home, home.env, name)
        if (path, name) not in self._names:
            found = lookup.looked_up(self._frame, project.exported(path, name))
            self._names[path, name] = self.value(found)
        return self._names[path, name]

    def value(self, held: facts.Value, *, is_all: bool = True) -> Value:
        """Returns what is known of a value; it may be something else unless ``is_all``."""
        found = [self._of(fact) for fact in sorted(held, key=_order)]
        if not found or not is_all:
            found.append(Value())
        return found[0] if len(found) == 1 else Either(options=found)

    def _of(self, fact: facts.Fact) -> Value:
        match fact:
            case facts.Function():
                return self.function(fact)
            case facts.Bound(function, owner):
                return self.function(function, self._of(owner))
            case facts.Named(name):
                return Library(name=name)
            case facts.Const(value):
                return Literal(value=value)
            case facts.Items(items, is_tuple):
                return Items(items=[self.value(each) for each in items], is_open=not is_tuple)
            case facts.Dict(items):
                return Table(items={k: self.value(v) for k, v in items}, rest=Value())
            case facts.Class():
                return self._objects.setdefault(fact, Type(fact=fact))
            case facts.Instance(cls):
                return self._objects.setdefault(fact, Table(rest=Value(), cls=cls))
            case facts.Partial(function, args, keywords):
                given = [self.value(each) for each in args]
                named = {name: self.value(each) for name, each in keywords}
                return Partial(function=self.value(function), args=given, keywords=named)
            case facts.Derivative(function, _, has_value, has_aux):
                of = self.value(function)
                return Gradient(function=of, has_value=has_value, has_aux=has_aux)
            case facts.Exported(path, name):
                return self.name_of(path, name) if name else Package(path=path)
            case facts.Result(of) if of in known_names.PROCESSES - known_names.PROCESS_COUNTS:
                return Value(Cause(f"{of}()"))
            case facts.Result(of) if of.startswith("jax.custom_"):
                # Its rules may ask for the device's index.
                return Library(name=of)
            case facts.Mapped() | facts.Sharded():
                return Library(name=MAPPED)
        return Value()

    def function(self, function: facts.Function, *bound: Value) -> Value:
        """Returns a function of the program; what an unknown decorator makes of it may be else."""
        found = Closure(
            node=function.node, module=function.module, scope=function.around, bound=bound
        )
        decorators = getattr(function.node, "decorator_list", ())
        if all(_is_transparent(each) for each in decorators):
            return found
        return Either(options=[found, Value()])

    def methods(self, cls: facts.Class, name: str) -> list[facts.Function] | None:
        """Returns the methods that a name of an object may be; None if it is none."""
        if name in set_from_outside(cls.module.project):
            return None
        held = _properties(cls, name) or lookup.of_class(self._frame, cls, name, [])
        found = [fact for fact in held if isinstance(fact, facts.Function)]
        return found if found and len(found) == len(held) else None


# By project, with how many files it had when it was read.
_SET: weakref.WeakKeyDictionary[Project, tuple[int, frozenset[str]]] = weakref.WeakKeyDictionary()


def set_from_outside(project: Project) -> frozenset[str]:
    """Returns the names that code sets in modules and classes that it imports.

    ``config.SYNC = False``, ``Trainer.reduce = mean``, and by ``globals()`` or ``setattr``.
    """
    count, found = _SET.get(project, (-1, frozenset()))
    if count != len(project.modules):
        modules = [module for module in project.modules.values() if module is not None]
        found = frozenset(name for module in modules for name in _set_in(module))
        _SET[project] = (len(project.modules), found)
    return found


def _set_in(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            base: ast.expr = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            held = module.env.find(base.id) if isinstance(base, ast.Name) else None
            if any(isinstance(fact, (facts.Exported, facts.Class)) for fact in held or ()):
                yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Call) and leaf(node.value.func) in ("globals", "vars"):
                key = node.slice
                yield str(key.value) if isinstance(key, ast.Constant) else ""
        elif isinstance(node, ast.Call) and leaf(node.func) == "setattr":
            yield from (str(arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant))


def _properties(cls: facts.Class, name: str) -> facts.Value:
    """Returns the functions of a property, which the analysis knows nothing of."""
    several = [cls, *(fact for base in cls.bases for fact in facts.of_kind(base, facts.Class))]
    found = [
        each.module.visited.get(node)
        for each in several
        for node in each.node.body
        if isinstance(node, ast.FunctionDef) and node.name == name
        if any(leaf(decorator) in PROPERTIES for decorator in node.decorator_list)
    ]
    return frozenset(fact for fact in found if fact is not None)


def _order(fact: facts.Fact) -> tuple[str, str, int]:
    """Sets have no order, and a report must not change from run to run."""
    function = fact.function if isinstance(fact, facts.Bound) else fact
    if isinstance(function, (facts.Function, facts.Class)):
        return type(fact).__name__, function.module.path, function.node.lineno
    return type(fact).__name__, str(getattr(fact, "name", "")), 0


def _is_transparent(decorator: ast.expr) -> bool:
    """Returns whether what a decorator returns gives the results of its function."""
    if isinstance(decorator, ast.Call):
        is_partial = leaf(decorator.func) == "partial" and bool(decorator.args)
        decorator = decorator.args[0] if is_partial else decorator.func
    return leaf(decorator) in _TRANSPARENT


def _is_bound_once(module: Module, scope: Environment, name: str) -> bool:
    definitions = module.facts.definitions
    found = definitions.bound.get((scope.node, name), set())  # type: ignore[arg-type]
    if found and all(isinstance(each.node, ast.alias) for each in found):
        # ``import jax`` and ``import jax.profiler`` bind the same module.
        return True
    if len({each.node for each in found}) > 1 or (scope.node, name) in definitions.rebound:
        return False
    return all(each.source is None or isinstance(each.source, _PLAIN) for each in found)
