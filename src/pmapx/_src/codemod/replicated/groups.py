"""Values that hold together: what flows from one place to another keeps its axis, or loses it.

Every place that makes, passes or holds a stacked value is an ``Element``; a flow from one to
another joins their groups. A group with a reason, anywhere in it, stays stacked.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis.values import Function, Place
from pmapx._src.codemod.decide.assigned_values import block_of
from pmapx._src.codemod.decide.copies import before_host
from pmapx._src.codemod.decide.fields import Fields
from pmapx._src.source.rewriting.edits import Edit

if TYPE_CHECKING:
    from pmapx._src.analysis.module import Module

SINGLE = -1  # The index of a result that is not a tuple.
# What these give depends on the devices that an array is on, which a stacked copy is not.
PLACED = frozenset(
    {
        "addressable_data", "addressable_shards", "global_shards", "sharding", "device",
        "device_buffer", "device_buffers", "is_fully_replicated", "is_fully_addressable",
    }
)  # fmt: skip
# Methods of arrays that change nothing.
READING = frozenset(
    {
        "all", "any", "argmax", "argmin", "astype", "clip", "cumsum", "dot", "flatten", "item",
        "max", "mean", "min", "prod", "ravel", "reshape", "round", "squeeze", "std", "sum", "take",
        "tobytes", "tolist", "transpose", "var",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Position:
    """An argument or a result of a pmap, by where that is applied; ``index`` may be ``SINGLE``."""

    path: str
    line: int
    column: int
    is_output: bool
    index: int

    @classmethod
    def of(cls, made_at: Place, index: int, *, is_output: bool) -> Position:
        return cls(made_at.path, made_at.line, made_at.column, is_output, index)

    @property
    def site(self) -> tuple[str, int, int]:
        return self.path, self.line, self.column


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a node once its value has no axis of devices.

    ``kind`` is ``index`` (the index goes), ``call`` (the call goes, its ``kept`` argument stays),
    ``place`` (the call puts its ``kept`` argument on all devices instead), ``stack`` (the value
    gets its axis back for what takes it there), ``unstack`` (it loses it where it is made) or
    ``merge`` (``edits`` take the split of a batch off). What the call did besides is written
    ``around`` the argument; of ``stack``, what takes it.
    """

    module: Module
    kind: str
    node: ast.expr
    kept: ast.expr | None = None
    devices: ast.expr | None = None
    around: str = ""
    # Of a call of a small function that does no more than make such a value: that function.
    maker: Function | None = None
    edits: tuple[Edit, ...] = ()
    # Of a state by field: the fields of its value that keep their axis.
    fields: Fields | None = None
    is_part: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Element:
    """One place of a value; the members of a group lead to the same ``root``."""

    key: Hashable
    above: Element | None = None
    position: Position | None = None
    reasons: dict[Place, str] = dataclasses.field(default_factory=dict)
    changes: dict[ast.AST, Change] = dataclasses.field(default_factory=dict)
    # Uses that are not followed, where the value could be stacked again; each with the reason.
    boundaries: dict[ast.AST, tuple[Change, Place, str]] = dataclasses.field(default_factory=dict)
    is_made: bool = False
    # Of a function's parameter, which its callers need not share.
    is_parameter: bool = False
    # Whether parts of it go their own ways, as of a tuple that is unpacked.
    is_taken_apart: bool = False
    is_joined: bool = False
    # Whether an object of another class is built of its fields.
    is_rebuilt: bool = False
    # Whether it is the value of a field of another. Fields that were read or set, by name, and uses
    # that are understood only if all fields are alike.
    is_part: bool = False
    fields: dict[str, Place] = dataclasses.field(default_factory=dict)
    # The methods that were called to give it other fields.
    methods: set[str] = dataclasses.field(default_factory=set)
    unsplit: dict[Place, str] = dataclasses.field(default_factory=dict)

    @property
    def matters(self) -> bool:
        """Whether it makes a difference here if the value has its axis."""
        seen = self.reasons or self.changes or self.boundaries
        return bool(seen) or self.is_made or not self.is_parameter

    @property
    def root(self) -> Element:
        """The element that stands for the group."""
        element = self
        while element.above is not None:
            element = element.above
        if element is not self:
            self.above = element
        return element


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A value that is of a group: stacked now, without the axis if the group loses it.

    ``is_leaf`` if it is surely an array, so that an index takes a shard. ``is_part`` if it is the
    value of a field. ``is_tuple`` if it is a tuple, so that an index takes an item. ``arrays`` are
    the names of its parts that are surely arrays. ``host`` is 1 if it may be an array of NumPy,
    which code can change in place, and 2 if it surely is.
    """

    element: Element
    is_leaf: bool = False
    is_part: bool = False
    is_tuple: bool = False
    arrays: frozenset[str] = frozenset()
    host: int = 0

    @property
    def is_field(self) -> bool:
        return self.is_part or self.element.is_part

    def on_host(self) -> Ref:
        return dataclasses.replace(self, host=2)

    def alike(self, *, is_leaf: bool = False) -> Ref:
        """Returns a value of its group that is as much of a state as it is."""
        return Ref(self.element, is_leaf, self.is_part, host=self.host)


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    items: tuple[Abstract, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """What ``.items()`` of a stacked dict gives."""

    ref: Ref


@dataclasses.dataclass(frozen=True, slots=True)
class Other:
    """A value that no pmap's axis is followed in; ``is_nothing`` for None and what is unbound."""

    is_nothing: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Mixed:
    """A value of these groups on some paths to here only; no use of it is followed."""

    found: frozenset[Ref]


Abstract = Ref | Parts | Pairs | Other | Mixed
OTHER = Other()
NOTHING = Other(is_nothing=True)
SPLIT = "it is a state here, and a field of one elsewhere"
MIXED = "it has a leading device axis on some paths to here, and not on others"


class Graph:
    """All elements, by what they stand for."""

    def __init__(self) -> None:
        self._elements: dict[Hashable, Element] = {}
        self.is_by_field = False

    def element(self, key: Hashable, position: Position | None = None) -> Element:
        """Returns the element of a key, made when it is first asked for."""
        if key not in self._elements:
            self._elements[key] = Element(key, position=position)
        return self._elements[key]

    def forget(self) -> None:
        """Drops reasons and changes, which are found anew in each round; groups stay joined."""
        for element in self._elements.values():
            element.reasons.clear()
            element.changes.clear()
            element.boundaries.clear()
            element.fields.clear()
            element.methods.clear()
            element.unsplit.clear()
            element.is_taken_apart = element.is_rebuilt = False

    def join(self, first: Element, second: Element) -> None:
        one, other = first.root, second.root
        if one is not other:
            first.is_joined = second.is_joined = one.is_joined = other.is_joined = True
            other.above = one

    def groups(self) -> list[list[Element]]:
        found: dict[Element, list[Element]] = {}
        for element in self._elements.values():
            found.setdefault(element.root, []).append(element)
        return list(found.values())

    def merge(self, first: Abstract, second: Abstract, place: Place) -> Abstract:
        """Returns what a value is that comes from either of two places."""
        if first == second or (isinstance(second, Other) and second.is_nothing):
            return first
        if isinstance(first, Other):
            if first.is_nothing:
                return second
            return Mixed(frozenset(refs(second)))
        if isinstance(first, Mixed) or isinstance(second, Mixed):
            return Mixed(frozenset([*refs(first), *refs(second)]))
        if isinstance(first, Ref) and isinstance(second, Ref):
            if first.is_field != second.is_field:
                first.element.unsplit[place] = SPLIT
            is_part = first.is_field or second.is_field
            self.join(first.element, second.element)
            # Of a group by field, the root may be a field.
            element = first.element if self.is_by_field else first.element.root
            is_leaf, is_tuple = first.is_leaf and second.is_leaf, first.is_tuple or second.is_tuple
            arrays, host = first.arrays & second.arrays, host_of([first, second])
            return Ref(element, is_leaf, is_part, is_tuple, arrays, host)
        if isinstance(first, Parts) and isinstance(second, Parts):  # noqa: SIM102
            if len(first.items) == len(second.items):
                pairs = zip(first.items, second.items, strict=True)
                return Parts(tuple(self.merge(one, other, place) for one, other in pairs))
        if isinstance(second, Other):
            return self.merge(second, first, place)
        merged = self.joined([first, second], place)
        return OTHER if merged is None else merged

    def joined(self, several: Iterable[Abstract], place: Place) -> Ref | None:
        """Makes one value of several, which then hold together; None if none has an axis."""
        found = list(several)
        all_refs = [ref for each in found for ref in refs(each)]
        if not all_refs:
            return None
        known = {ref.element for each in found if not isinstance(each, Mixed) for ref in refs(each)}
        for ref in all_refs:
            # Its fields are deeper in there.
            ref.element.is_part |= self.is_by_field and not ref.is_part and ref.element in known
            self.join(all_refs[0].element, ref.element)
        if any(has_other(each) for each in found):
            all_refs[0].element.reasons.setdefault(place, MIXED)
        root = all_refs[0].element.root
        return Ref(root, is_part=self.is_by_field, host=host_of(all_refs))


def refs(held: Abstract) -> Iterator[Ref]:
    """Returns the values of groups in a value."""
    if isinstance(held, Ref):
        yield held
    elif isinstance(held, Pairs):
        yield held.ref
    elif isinstance(held, Mixed):
        yield from held.found
    elif isinstance(held, Parts):
        for item in held.items:
            yield from refs(item)


def host_of(several: Sequence[Ref]) -> int:
    """Returns whether a value that is one of several may be an array of NumPy, or surely is."""
    kinds = {ref.host for ref in several}
    return kinds.pop() if len(kinds) == 1 else 1


def has_other(held: Abstract) -> bool:
    """Tells whether any part of a value has no axis that is followed."""
    if isinstance(held, Parts):
        return any(has_other(item) for item in held.items)
    return isinstance(held, Mixed) or (isinstance(held, Other) and not held.is_nothing)


def boundaries(group: list[Element]) -> dict[ast.AST, tuple[Change, Place, str]]:
    """Returns the uses of a group that are not followed, as few as can be given a stacked copy.

    A name that is used only so is stacked where it is assigned.
    """
    found = {node: one for each in group for node, one in each.boundaries.items()}
    stacked = {node for node, (change, _, _) in found.items() if change.kind == "stack"}
    for node, (change, _, why) in list(found.items()):
        if not isinstance(node, ast.Name) or node not in found or node not in stacked:
            continue
        module = change.module
        reaching = module.facts.definitions.reaching
        block = block_of(module, node)
        uses = {
            part
            for part in ast.walk(block)
            if isinstance(part, ast.Name) and part.id == node.id and isinstance(part.ctx, ast.Load)
        }
        bindings = {each for use in uses for each in reaching.get(use, (None,))}
        (binding,) = bindings if len(bindings) == 1 else (None,)
        source = binding.source if binding is not None and not binding.steps else None
        above = module.parent(source) if source is not None else None
        is_plain = isinstance(above, ast.Assign) and len(above.targets) == 1
        if source is not None and is_plain and len(uses) > 1 and uses <= stacked:
            for use in uses:
                del found[use]
            one = Change(module, "stack", before_host(module, source), around="the code below")
            found[source] = (one, module.place(source), why)
    return found


def shapes(values: dict[object, Abstract]) -> dict[object, Any]:
    """Returns what tells the values of a round from those of another."""
    return {key: _shape(held) for key, held in values.items()}


def _shape(held: Abstract) -> Any:
    """Returns what tells a value from that of another round."""
    if isinstance(held, Parts):
        return tuple(_shape(item) for item in held.items)
    if isinstance(held, (Ref, Pairs)):
        ref = held if isinstance(held, Ref) else held.ref
        kinds = ref.is_leaf, ref.is_field, ref.is_tuple, ref.host
        return type(held).__name__, id(ref.element.root), *kinds
    if isinstance(held, Mixed):
        return frozenset(id(ref.element.root) for ref in held.found)
    return held.is_nothing
