"""The names that a body sees: its own, those of functions around it, and those of its module."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pmapx._src.analysis import known_names
from pmapx._src.analysis import values as facts
from pmapx._src.analysis.interpreter import lookup
from pmapx._src.analysis.interpreter.frame import Frame
from pmapx._src.analysis.scopes import Environment
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

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module

_TRANSPARENT = frozenset(
    {
        "jit", "pmap", "vmap", "checkpoint", "remat", "named_call", "named_scope", "staticmethod",
        "classmethod", "property", "cached_property", "compact", "nowrap", "transparent", "wraps",
        "override", "typechecked", "jaxtyped", "typed", "abstractmethod", "filter_jit",
    }
)  # fmt: skip
_EQUAL = frozenset({"jax.process_count", "jax.host_count"})
# A function that is mapped itself.
MAPPED = "a mapped function"
# A binding of one of these holds no more than the analysis found in it.
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Lambda, ast.Constant, ast.Tuple, ast.List)


class Outside:
    """What stands around the bodies that are read: constants, the same on all devices.

    A name is looked up once, so that what a body stores in its object is seen by others.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], Value] = {}
        self._objects: dict[int, Value] = {}

    @property
    def held(self) -> list[Value]:
        return [*self._names.values(), *self._objects.values()]

    def name(self, module: Module, env: Environment, name: str) -> Value:
        """Returns what a name holds where the body is defined."""
        scope: Environment | None = env
        while scope is not None and (
            name not in scope.names or (scope.is_class and scope is not env)
        ):
            scope = scope.around
        key = (id(scope or module), name)
        if key not in self._names:
            frame = Frame(module, env)
            if scope is None:
                held = lookup.name_value(frame, name)
                self._names[key] = self.value(module, held, is_all=True)
            else:
                held = lookup.looked_up(frame, scope.names[name])
                is_all = _is_bound_once(module, scope, name)
                self._names[key] = self.value(module, held, is_all=is_all)
        return self._names[key]

    def name_of(self, module: Module, path: str, name: str) -> Value:
        """Returns what a name of another module of the program holds."""
        home = module.project.module(path)
        if home is not None and name in home.env.names:
            return self.name(home, home.env, name)
        held = lookup.looked_up(Frame(module, module.env), module.project.exported(path, name))
        return self.value(module, held, is_all=True)

    def value(self, module: Module, held: facts.Value, *, is_all: bool) -> Value:
        """Returns what is known of a value; it may be something else unless ``is_all``."""
        found = [self._of(module, fact) for fact in held]
        if not found or not is_all:
            found.append(Value())
        return found[0] if len(found) == 1 else Either(options=found)

    def _all(self, module: Module, several: Iterable[facts.Value]) -> list[Value]:
        return [self.value(module, each, is_all=True) for each in several]

    def _of(self, module: Module, fact: facts.Fact) -> Value:
        if isinstance(fact, facts.Function):
            return self.function(fact)
        if isinstance(fact, facts.Bound):
            return self.function(fact.function, self._of(module, fact.owner))
        if isinstance(fact, facts.Named):
            return Library(name=fact.name)
        if isinstance(fact, facts.Const):
            return Literal(value=fact.value)
        if isinstance(fact, facts.Items):
            return Items(items=self._all(module, fact.items), is_open=not fact.is_tuple)
        if isinstance(fact, facts.Dict):
            items = dict(zip(dict(fact.items), self._all(module, dict(fact.items).values()),
                             strict=True))  # fmt: skip
            return Table(items=items, rest=Value())
        if isinstance(fact, facts.Class):
            return Type(fact=fact)
        if isinstance(fact, facts.Instance):
            return self._objects.setdefault(id(fact.cls), Table(rest=Value(), cls=fact.cls))
        if isinstance(fact, facts.Partial):
            keywords = dict(fact.keywords)
            return Partial(
                function=self.value(module, fact.function, is_all=True),
                args=self._all(module, fact.args),
                keywords=dict(zip(keywords, self._all(module, keywords.values()), strict=True)),
            )
        if isinstance(fact, facts.Derivative):
            function = self.value(module, fact.function, is_all=True)
            return Gradient(function=function, has_value=fact.has_value, has_aux=fact.has_aux)
        if isinstance(fact, facts.Exported):
            if not fact.name:
                return Package(path=fact.path)
            return self.name_of(module, fact.path, fact.name)
        if isinstance(fact, facts.Result) and fact.of in known_names.PROCESSES - _EQUAL:
            return Value(Cause(f"{fact.of}()"))
        if isinstance(fact, (facts.Mapped, facts.Sharded)):
            return Library(name=MAPPED)
        return Value()

    def function(self, function: facts.Function, *bound: Value) -> Value:
        """Returns a function of the program; what an unknown decorator makes of it may be else."""
        scope = Scope(self, function.module, function.around)
        found = Closure(node=function.node, module=function.module, scope=scope, bound=bound)
        decorators = getattr(function.node, "decorator_list", ())
        if all(_is_transparent(each) for each in decorators):
            return found
        return Either(options=[found, Value()])


class Scope:
    """The names of one function that is read; ``env`` has those of what is around the first."""

    def __init__(
        self, outside: Outside, module: Module, env: Environment, around: Scope | None = None
    ) -> None:
        self.outside = outside
        self.module = module
        self.env = env
        self.around = around
        self.names: dict[str, Value] = {}
        # Names that belong to a scope around this one, or to the module.
        self.declared: set[str] = set()

    def find(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and name not in scope.declared:
                return scope.names[name]
            scope = scope.around
        return self.outside.name(self.module, self.env, name)

    def local(self) -> list[Value]:
        """Returns what the functions around hold that are read themselves."""
        held = [] if self.around is None else self.around.local()
        return [*held, *self.names.values()]


def _is_transparent(decorator: ast.expr) -> bool:
    """Returns whether what a decorator returns gives the results of its function."""
    if isinstance(decorator, ast.Call):
        name = _leaf(decorator.func)
        if name == "partial" and decorator.args:
            return _leaf(decorator.args[0]) in _TRANSPARENT
        return name in _TRANSPARENT
    return _leaf(decorator) in _TRANSPARENT


def _leaf(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_bound_once(module: Module, scope: Environment, name: str) -> bool:
    definitions = module.facts.definitions
    found = definitions.bound.get((scope.node, name), set())  # type: ignore[arg-type]
    if found and all(isinstance(each.node, ast.alias) for each in found):
        # ``import jax`` and ``import jax.profiler`` bind the same module.
        return True
    if len({each.node for each in found}) > 1 or (scope.node, name) in definitions.rebound:
        return False
    return all(each.source is None or isinstance(each.source, _PLAIN) for each in found)


def methods(module: Module, cls: facts.Class, name: str) -> list[facts.Function] | None:
    """Returns the methods that a name of an object may be; None if it is none."""
    held = lookup.of_class(Frame(module, module.env), cls, name, [])
    found = [fact for fact in held if isinstance(fact, facts.Function)]
    return found if found and len(found) == len(held) else None
