"""What a value may be in the body of a pmapped function, and why it differs between devices."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis.values import Class

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module
    from pmapx._src.analysis.scopes import Environment


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why a value varies: what it depends on, and the line that first uses that; 0 if none yet."""

    what: str
    line: int = 0


class NotFollowedError(Exception):
    """Something in the body is not understood, so that all results count as varying."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.cause = Cause(what, line)


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """Data of which only ``cause`` is known. It may be mutable, so that names share one object.

    A value of several origins varies if any of these ``sources`` does, and they with it.
    """

    cause: Cause | None = None
    sources: tuple[Value, ...] = ()

    def parts(self) -> Iterable[Value]:
        return ()


@dataclasses.dataclass(eq=False, slots=True)
class Fresh(Value):
    """The result of a computation: nothing else can hold the same object."""


@dataclasses.dataclass(eq=False, slots=True)
class Literal(Value):
    value: Any = None


@dataclasses.dataclass(eq=False, slots=True)
class Items(Value):
    """A tuple or list; ``nodes`` are the expressions of its items, where it is written out."""

    items: list[Value] = dataclasses.field(default_factory=list)
    nodes: Sequence[ast.expr] = ()
    is_open: bool = False

    def parts(self) -> Iterable[Value]:
        return self.items


@dataclasses.dataclass(eq=False, slots=True)
class Table(Value):
    """A dict or object by key or attribute; ``rest`` is all that is not among the items.

    ``method`` is what gives such an object with other fields: ``replace``, ``_replace``, or none.
    """

    items: dict[str, Value] = dataclasses.field(default_factory=dict)
    rest: Value | None = None
    cls: Class | None = None
    method: str = ""

    def parts(self) -> Iterable[Value]:
        return [*self.items.values(), *([self.rest] if self.rest is not None else ())]


@dataclasses.dataclass(eq=False, slots=True)
class Closure(Value):
    """A function of the program, with the names around it and the object that it is bound to."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = None  # type: ignore[assignment]
    module: Module = None  # type: ignore[assignment]
    scope: Environment = None  # type: ignore[assignment]
    bound: tuple[Value, ...] = ()
    # What its parameters hold that are not given, from where it was defined.
    defaults: dict[str, Value] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Library(Value):
    """A function or module from outside the program."""

    name: str = ""


@dataclasses.dataclass(eq=False, slots=True)
class Package(Value):
    """A module of the program."""

    path: str = ""


@dataclasses.dataclass(eq=False, slots=True)
class Type(Value):
    fact: Class = None  # type: ignore[assignment]


@dataclasses.dataclass(eq=False, slots=True)
class Partial(Value):
    function: Value = None  # type: ignore[assignment]
    args: list[Value] = dataclasses.field(default_factory=list)
    keywords: dict[str, Value] = dataclasses.field(default_factory=dict)

    def parts(self) -> Iterable[Value]:
        return [*self.args, *self.keywords.values()]


@dataclasses.dataclass(eq=False, slots=True)
class Gradient(Value):
    """``jax.grad`` or ``jax.value_and_grad`` of a function; ``has_aux`` None if it is not known."""

    function: Value = None  # type: ignore[assignment]
    has_value: bool = False
    has_aux: bool | None = False


@dataclasses.dataclass(eq=False, slots=True)
class Deferred(Value):
    """What a library's function made of functions that it was given: it may call any of them."""

    functions: list[Value] = dataclasses.field(default_factory=list)

    def parts(self) -> Iterable[Value]:
        return self.functions


@dataclasses.dataclass(eq=False, slots=True)
class Either(Value):
    options: list[Value] = dataclasses.field(default_factory=list)

    def parts(self) -> Iterable[Value]:
        return self.options


@dataclasses.dataclass(slots=True)
class Given:
    """The arguments of a call; ``rest`` is all of which it is not known where it goes."""

    args: list[Value] = dataclasses.field(default_factory=list)
    keywords: dict[str, Value] = dataclasses.field(default_factory=dict)
    rest: Value | None = None

    @property
    def every(self) -> list[Value]:
        return [*self.args, *self.keywords.values(), *([self.rest] if self.rest else ())]

    def get(self, position: int, name: str) -> Value | None:
        return self.args[position] if position < len(self.args) else self.keywords.get(name)


_FUNCTIONS = (Closure, Partial, Gradient, Type)
CALLABLE = (*_FUNCTIONS, Deferred)
_DATA = (Value, Fresh, Literal, Items, Table)
# A value of more options than this is as good as any data.
MOST_OPTIONS = 12
MOST_ROUNDS = 8
# Methods that put their arguments into their object.
MUTATING = frozenset({"append", "extend", "insert", "add", "setdefault", "appendleft"})


def reached(value: Value, *, has_parts: bool = True) -> Iterator[Value]:
    """Returns a value, what it comes from, and all that it holds."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [*each.parts(), *each.sources] if has_parts else each.sources


def cause_of(*values: Value | None) -> Cause | None:
    """Returns why any part of these values varies, None if none does."""
    for value in values:
        for each in reached(value) if value is not None else ():
            if each.cause is not None:
                return each.cause
    return None


def own_cause(value: Value) -> Cause | None:
    """Returns why a container varies as a whole, whatever its parts do."""
    causes = (each.cause for each in reached(value, has_parts=False))
    return next((cause for cause in causes if cause is not None), None)


def any_of(*values: Value) -> Value:
    """Returns some part of some values."""
    return Value(cause_of(*values), values)


def sharing(result: Value, containers: Iterable[Value]) -> Value:
    """Returns what is computed from containers, and may be or have parts of them."""
    sources = tuple(containers)
    return Value(result.cause, sources) if sources and isinstance(result, Fresh) else result


def within(container: Value, part: Value) -> Value:
    """Returns a part of a container, which may have been changed as a whole."""
    found = own_cause(container)
    return part if found is None or own_cause(part) is not None else Value(found, (part,))


def functions_in(values: Iterable[Value]) -> list[Value]:
    """Returns the functions of the program that values hold."""
    found = {id(each): each for value in values for each in reached(value)}
    return [each for each in found.values() if isinstance(each, _FUNCTIONS)]


def vary(value: Value, cause: Cause) -> None:
    """Marks data as varying in place, for all names that hold it."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (Literal, Library, Package)):
            continue
        seen.add(id(each))
        if isinstance(each, Either):
            waiting += each.options
        else:
            each.cause = each.cause or cause
        waiting += each.sources
        # It may be a container in what it comes from.
        parts = (part for source in each.sources for part in reached(source))
        waiting += [part for part in parts if isinstance(part, (Items, Table))]


def join(first: Value, second: Value) -> Value:
    """Returns what a value is that is one of two."""
    if first is second:
        return first
    if isinstance(first, Literal) and isinstance(second, Literal):
        same = type(first.value) is type(second.value) and first.value == second.value
        return first if same else Fresh()
    if type(first) not in _DATA or type(second) not in _DATA:
        return _either(first, second)
    if isinstance(first, (Fresh, Literal)) and isinstance(second, (Fresh, Literal)):
        return Fresh(first.cause or second.cause)
    own = first.cause or second.cause
    if isinstance(first, Items) and isinstance(second, Items):  # noqa: SIM102
        if len(first.items) == len(second.items):
            items = [join(*pair) for pair in zip(first.items, second.items, strict=True)]
            is_open = first.is_open or second.is_open
            return Items(own, (first, second), items, first.nodes, is_open)
    if isinstance(first, Table) and isinstance(second, Table) and first.cls is second.cls:
        keys = {**first.items, **second.items}
        items_by_key = {
            key: join(first.items.get(key, first.rest or Literal(value=None)),
                      second.items.get(key, second.rest or Literal(value=None)))
            for key in keys
        }  # fmt: skip
        rest = join(first.rest, second.rest) if first.rest and second.rest else None
        rest = rest or first.rest or second.rest
        method = first.method if first.method == second.method else ""
        return Table(own, (first, second), items_by_key, rest, first.cls, method)
    return Value(own, (first, second))


def _either(first: Value, second: Value) -> Value:
    several = [*(first.options if isinstance(first, Either) else [first]),
               *(second.options if isinstance(second, Either) else [second])]  # fmt: skip
    options = [joined(data)] if (data := [each for each in several if type(each) in _DATA]) else []
    for one in several:
        is_new = not any(_is_same(one, other) for other in options)
        options += [one] if type(one) not in _DATA and is_new else []
    if len(options) > MOST_OPTIONS:
        raise NotFollowedError("a function that is one of many", 0)
    return options[0] if len(options) == 1 else Either(options=options)


def _is_same(one: Value, other: Value) -> bool:
    if one is other:
        return True
    if isinstance(one, Library) and isinstance(other, Library):
        return one.name == other.name
    if isinstance(one, Closure) and isinstance(other, Closure):
        is_same = one.node is other.node and one.scope is other.scope and one.bound == other.bound
        return is_same and shapes(one.defaults) == shapes(other.defaults)
    if isinstance(one, Deferred) and isinstance(other, Deferred):
        is_same = (cause_of(one) is None) == (cause_of(other) is None)
        is_same &= not one.sources and not other.sources
        pairs = itertools.zip_longest(one.functions, other.functions, fillvalue=Value())
        return is_same and all(_is_same(*pair) for pair in pairs)
    return False


def joined(values: Iterable[Value]) -> Value:
    held: Value | None = None
    for value in values:
        held = value if held is None else join(held, value)
    return held if held is not None else Literal(value=None)


def shape(value: Value, depth: int = 0) -> Any:
    """Returns what distinguishes a value from that of another round of a loop."""
    if depth > 6:
        return None
    own: tuple[Any, ...] = (type(value).__name__, cause_of(value) is None)
    if isinstance(value, Literal):
        return (*own, repr(value.value))
    if isinstance(value, Closure):
        return (*own, id(value.node), shapes(value.defaults, depth + 1))
    if isinstance(value, Table):
        own = (*own, tuple(value.items))
    return (*own, tuple(shape(part, depth + 1) for part in value.parts()))


def shapes(several: dict[str, Value] | None, depth: int = 0) -> dict[str, Any]:
    return {name: shape(each, depth) for name, each in (several or {}).items()}


def is_none(value: Value) -> bool:
    return isinstance(value, Literal) and value.value is None
