"""What is known of a value in code that is read and not run: a set of facts, empty if nothing is.

A value with several facts may be any of them, as after ``pmap = jax.pmap if many else jax.jit``.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pmapx._src.source.location import Confidence as Confidence
from pmapx._src.source.location import Place as Place

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module
    from pmapx._src.analysis.scopes import Environment


class Fact:
    """One thing that a value may be. None changes, but frozen dataclasses take long to make."""

    __slots__ = ()


Value = frozenset[Fact]
UNKNOWN: Value = frozenset()
# A value that may be more things than this is as good as unknown.
MOST_FACTS = 12


def value(*facts: Fact) -> Value:
    """Returns the value that is one of these facts."""
    return frozenset(facts)


def join(*values: Value) -> Value:
    """Returns what a value is that comes from any of several places."""
    joined = UNKNOWN
    for held in values:
        if held:
            joined = joined | held if joined else held
    return joined if len(joined) <= MOST_FACTS else UNKNOWN


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Named(Fact):
    """An object or module known by its full name, such as ``jax.pmap``."""

    name: str


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Exported(Fact):
    """A name of a module of the project, looked up when it is used; "" is the module itself."""

    path: str
    name: str


@dataclasses.dataclass(slots=True, eq=False)
class Const(Fact):
    """A literal number, string or None."""

    value: Any

    def __eq__(self, other: object) -> bool:
        """Compares with the type, since 1, 1.0 and True are equal in Python."""
        return (
            isinstance(other, Const)
            and type(self.value) is type(other.value)
            and self.value == other.value
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Items(Fact):
    """A tuple or list whose length is known."""

    items: tuple[Value, ...]
    is_tuple: bool = True


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Elements(Fact):
    """A list or iterator of unknown length with such elements."""

    element: Value


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Dict(Fact):
    """A dict with these string keys; ``is_open`` if it may have more."""

    items: tuple[tuple[str, Value], ...]
    is_open: bool = False


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Result(Fact):
    """What a call of an outside function gave; only the function's name is known."""

    of: str


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class NotATuple(Fact):
    """An array, dict or object: an index into it does not choose from a tuple."""


@dataclasses.dataclass(slots=True, eq=False)
class Function(Fact):
    """A ``def`` or ``lambda`` of the code that is read, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    around: Environment
    owner: Class | None = None
    defaults: tuple[tuple[str, Value], ...] = ()

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")


@dataclasses.dataclass(slots=True, eq=False)
class Class(Fact):
    """A class of the code that is read; ``attributes`` holds what any method assigns to self."""

    node: ast.ClassDef
    module: Module
    bases: tuple[Value, ...]
    attributes: dict[str, Value]
    body: dict[str, Value]


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Instance(Fact):
    cls: Class


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Bound(Fact):
    function: Function
    owner: Fact


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Method(Fact):
    """A method taken from something that is followed here, such as ``.lower`` of a pmap."""

    owner: Fact
    name: str


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Partial(Fact):
    """``functools.partial(function, *args, **keywords)``."""

    function: Value
    args: tuple[Value, ...]
    keywords: tuple[tuple[str, Value], ...]
    place: Place


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Mapped(Fact):
    """A function that pmap returned; ``site`` is where ``jax.pmap`` is written."""

    site: Place
    made_at: Place
    function: Value
    in_axes: Value = UNKNOWN
    out_axes: Value = UNKNOWN
    donated: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Stacked(Fact):
    """An array or tree whose leaves have a leading device axis.

    ``doubt`` is whether an index may choose from a tuple in place of a shard: ``HIGH`` for an
    unknown result, ``MEDIUM`` for an unknown part of a known tuple.
    """

    origin: str
    place: Place
    confidence: Confidence = Confidence.HIGH
    doubt: Confidence = Confidence.LOW
    from_map: bool = True


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class OnDevice(Fact):
    """An array that ``jax.device_put`` committed to one device."""

    place: Place


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Lowered(Fact):
    """What ``.lower()`` of a pmapped function gave."""

    mapped: Mapped


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Donated(Fact):
    """Rides along with a value whose buffers a call took."""

    by: Place
    argument: int
    on_every_path: bool = True


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Mesh(Fact):
    """A device mesh; ``has_axis_types`` when the call that made it gives them."""

    place: Place
    made_by: str
    has_axis_types: bool


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Spec(Fact):
    """A PartitionSpec over these axes; None when they are not known."""

    axes: frozenset[str] | None


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Sharded(Fact):
    """A function that shard_map returned."""

    place: Place
    function: Value


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Invariant(Fact):
    """An argument of a checked shard_map's body that is the same along all axes but these."""

    varying: frozenset[str]
    shard_map: Place


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Derivative(Fact):
    """What ``jax.grad`` or a relative returned."""

    function: Value
    argnums: tuple[int, ...]
    has_value: bool
    has_aux: bool


@dataclasses.dataclass(slots=True, unsafe_hash=True)
class Gradient(Fact):
    """A gradient with respect to an invariant argument: already summed over the axes."""

    varying: frozenset[str]
    shard_map: Place
    of_mean: bool


def of_kind(known: Value, kind: type[Any]) -> Iterator[Any]:
    return (fact for fact in known if isinstance(fact, kind))


def functions_in(known: Value) -> Iterator[Function]:
    """Yields the functions that a value may be, also inside a partial or a derivative."""
    for fact in known:
        if isinstance(fact, Function):
            yield fact
        elif isinstance(fact, Bound):
            yield fact.function
        elif isinstance(fact, (Partial, Derivative)):
            yield from functions_in(fact.function)


def constant(known: Value) -> Any:
    """Returns the literal that a value is known to be, or ``...``."""
    if len(known) == 1:
        (fact,) = known
        if isinstance(fact, Const):
            return fact.value
        if isinstance(fact, Items):
            parts = [constant(item) for item in fact.items]
            if ... not in parts:
                return tuple(parts) if fact.is_tuple else list(parts)
    return ...


def integers(known: Value) -> tuple[int, ...]:
    """Returns the integers that a value is known to be: one, or a tuple or list of them."""
    literal = constant(known)
    if isinstance(literal, int) and not isinstance(literal, bool):
        return (literal,)
    if isinstance(literal, (tuple, list)) and all(type(part) is int for part in literal):
        return tuple(literal)
    return ()
