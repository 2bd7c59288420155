"""The pmaps of a program as they are called: their axes, their arguments, and where options go."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

from pmapx._src.analysis import known_names
from pmapx._src.analysis.facts import Making
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import positional
from pmapx._src.analysis.values import Class, Confidence, Mapped, Place, Value, constant, integers
from pmapx._src.codemod.decide.connected_code import ConnectedCode
from pmapx._src.codemod.evidence.evidence import Evidence, Record
from pmapx._src.codemod.replicated import wrappers
from pmapx._src.codemod.replicated.mapped_functions import (
    base_names,
    functions,
    one_arity,
    returns_tuple,
    runs_only_mapped,
    uses_itself,
)
from pmapx._src.codemod.replicated.wrappers import Wrapper

SiteKey = tuple[str, int, int]
WRAPPER = "it is mapped through a wrapper, whose other users would change too"
BARE = "it is mapped by a decorator without options: write functools.partial(jax.pmap, ...)"
UNPACKED = "its options are unpacked, so they are not known"
AXES = "its in_axes or out_axes are not written out"
STATIC = "its static_broadcasted_argnums are not written out"
DEVICES = "its devices are chosen by a wrapper"
SEVERAL = "several functions are mapped here"
CLASS_BODY = "it is mapped in the body of a class"

_FOLLOWED = known_names.FOLLOWED | known_names.SHARD
_PLAIN_BASES = frozenset(
    {"object", "ABC", "NamedTuple", "Protocol", "Generic", "Enum", "TypedDict"}
)


@dataclasses.dataclass(slots=True, eq=False)
class Map:
    """One use of pmap: ``node`` applies it, ``site`` is where ``jax.pmap`` is written."""

    made_at: Place
    site: Place
    module: Module
    node: ast.AST
    function: Value
    in_axes: object
    out_axes: object
    static: frozenset[int]
    donated: frozenset[int]
    obstacle: str
    record: Record | None
    # The name of the mapped axis: None without one, ... if it is not known.
    axis: object = None
    counts: set[int] = dataclasses.field(default_factory=set)
    has_keywords: bool = False
    reasons: dict[Place, str] = dataclasses.field(default_factory=dict)
    # The function of the user's that it is mapped through, and where else that maps it just so.
    wrapper: Wrapper | None = None
    is_mergeable: bool = True
    # Whether its function stays as it is, in a lambda that converts its arguments.
    is_wrapped: bool = False
    is_splittable: bool = False
    calls: dict[ast.Call, tuple[Module, ast.Call]] = dataclasses.field(default_factory=dict)
    again: tuple[tuple[Module, ast.Call], ...] = ()
    # Calls whose keywords would become positions: how many positions they have, and the order.
    by_keyword: dict[ast.Call, tuple[Module, list[ast.keyword]]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def key(self) -> SiteKey:
        return self.made_at.path, self.made_at.line, self.made_at.column

    @property
    def name(self) -> str:
        if self.record is not None and self.record.function:
            return self.record.function
        for function, _ in functions(self.function):
            return function.name
        first = self.node.args[0] if isinstance(self.node, ast.Call) and self.node.args else None
        if isinstance(first, (ast.Name, ast.Attribute)):
            return first.id if isinstance(first, ast.Name) else first.attr
        return "a pmapped function"

    def is_set_when_made(self, name: str) -> bool:
        """Tells whether ``self.name = jax.pmap(self.name)`` takes the method's place for all calls.

        It does in ``__init__``; elsewhere, if the method cannot run outside of its map.
        """
        assigned = self.module.parent(self.node)
        above = self.module.parent(assigned)
        targets = assigned.targets if isinstance(assigned, ast.Assign) else []
        is_own = any(isinstance(t, ast.Attribute) and t.attr == name for t in targets)
        if not is_own or not isinstance(above, ast.FunctionDef):
            return False
        return above.name == "__init__" or runs_only_mapped(self.function, self.axis)

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments by position, as far as the definition tells them."""
        for function, taken in functions(self.function):
            return positional(function.node.args)[taken:]
        if self.record is not None:
            found = self.record.names
            return [found.get(str(i), str(i)) for i in range(len(found))]
        return []

    @property
    def is_method(self) -> bool:
        """Whether a call on an object passes that as the first argument."""
        function = self.module.parent(self.node)
        return (
            isinstance(function, ast.FunctionDef)
            and self.node in function.decorator_list
            and isinstance(self.module.parent(function), ast.ClassDef)
            and not any(isinstance(d, ast.Name) and d.id == "staticmethod"
                        for d in function.decorator_list)
        )  # fmt: skip

    def index_of(self, argument: str) -> int | None:
        """Returns the position of an argument, by the name or number that a run knows it by."""
        if argument.isdigit():
            return int(argument)
        names = self.parameters
        return names.index(argument) if argument in names else None

    @property
    def arity(self) -> int | None:
        """How many results it gives: None if it is one that is no tuple, -1 if nobody knows."""
        if self.record is not None and self.record.arity != "unknown":
            return self.record.arity  # type: ignore[return-value]
        return one_arity(function for function, _ in functions(self.function))

    def gives_tuple(self, index: int) -> bool:
        """Tells whether a result is surely a tuple, whose items an index takes."""
        if self.record is not None and self.record.arity != "unknown":
            return ("single" if index < 0 else str(index)) in self.record.tuples
        found = [function for function, _ in functions(self.function)]
        return bool(found) and all(returns_tuple(function, index) for function in found)

    def arrays_in(self, index: int) -> frozenset[str]:
        """Returns the parts of a result, by name, that a run showed to be arrays."""
        found = self.record.arrays if self.record is not None else {}
        return frozenset(found.get("single" if index < 0 else str(index), ()))

    def in_axis(self, index: int) -> object:
        """Returns the axis of an argument, ``...`` if it is not known."""
        if isinstance(self.in_axes, (tuple, list)):
            return self.in_axes[index] if index < len(self.in_axes) else ...
        return self.in_axes

    def out_axis(self, index: int) -> object:
        """Returns the axis of a result, ``...`` if it is not known."""
        if isinstance(self.out_axes, (tuple, list)) and index >= 0:
            return self.out_axes[index] if index < len(self.out_axes) else ...
        return self.out_axes


# What a wrapper made: by which pmap, of which functions, and with which options.
Identity = tuple[Place, frozenset[object], str]


def _identity(mapped: Mapped) -> Identity:
    """Returns what tells it from others, in whichever reading of the file it was seen."""
    nodes: set[object] = {function.node for function, _ in functions(mapped.function)}
    axes = [constant(held) for held in (mapped.in_axes, mapped.out_axes)]
    return mapped.made_at, frozenset(nodes or mapped.function), f"{axes} {mapped.donated}"


class Maps:
    """All pmaps of a program, by where they are applied."""

    @functools.cached_property
    def connected(self) -> ConnectedCode:
        """The statements that values of the maps may reach."""
        seeds = [
            (module, reference.node.lineno)  # type: ignore[attr-defined]
            for module in self.modules
            for reference in module.facts.references.values()
            if reference.name in _FOLLOWED and reference.by != "import"
        ]
        return ConnectedCode(self.modules, seeds)

    def __init__(self, modules: Iterable[Module], evidence: Evidence) -> None:
        self.evidence = evidence
        self.in_processes: Callable[[Module], bool] = lambda module: False
        self.modules = list(modules)
        self._makings: dict[Place, tuple[Module, Making]] = {}
        self._wrappers: dict[Place, Wrapper] = {}
        for module in self.modules:
            for making in module.facts.makings.values():
                place = module.place(making.node)
                self._makings[place] = (module, making)
                found = wrappers.wrapper(module, making.node)
                if found is not None:
                    self._wrappers[place] = found
        self._made: dict[Place, dict[Identity, Making]] = {place: {} for place in self._wrappers}
        for module in self.modules:
            for mapped, making in module.facts.made.items():
                if mapped.made_at in self._made:
                    self._made[mapped.made_at][_identity(mapped)] = making
        self._identities: dict[SiteKey, Identity] = {}
        self._uses = self._find_uses()
        self._maps: dict[SiteKey, Map] = {}
        self.differing: dict[ast.expr, bool] = {}
        self._classes = {
            node.name: node
            for module in self.modules
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
        }

    @property
    def through_wrappers(self) -> set[str]:
        """The names of functions that are mapped, though not by a pmap that names them."""
        own = {function.node for each in self for function, _ in functions(each.function)}
        mapped = self.modules[0].project.mapped if self.modules else {}
        return {getattr(node, "name", "") for node in mapped if node not in own} - {""}

    def __iter__(self) -> Iterator[Map]:
        """Gives those that are called, and those that are only made."""
        for identity in self._uses:
            self._through(identity)
        used = {made_at for made_at, *_ in self._uses}
        for made_at in self._makings:
            if made_at not in used:
                self._of(made_at)
        return iter(sorted(self._maps.values(), key=lambda each: each.key))

    def forget(self) -> None:
        """Drops what calls showed, which is found anew in each round."""
        for each in self._maps.values():
            each.counts.clear()
            each.reasons.clear()
            each.has_keywords = False
            each.by_keyword.clear()

    def get(self, mapped: Mapped) -> Map | None:
        identity = _identity(mapped)
        return self._through(identity) if identity in self._uses else self._of(mapped.made_at)

    def by_key(self, key: SiteKey) -> Map:
        return self._maps[key]

    def functions_of(self, each: Map) -> list[Value]:
        """Returns what it maps, in every reading of the code around it."""
        found = [each.function]
        identity = self._identities.get(each.key)
        made_at = each.made_at if identity is None else identity[0]
        for module in self.modules:
            for mapped, making in module.facts.made.items():
                is_it = mapped.made_at == made_at and identity in (None, _identity(mapped))
                if is_it and making.function not in found:
                    found.append(making.function)
        # ``self.step = jax.pmap(self.step)``: what is mapped is not the map.
        known = [
            frozenset(f for f in held if not isinstance(f, Mapped) or f.made_at != made_at)
            for held in found
        ]
        return [held for held in known if held] or [each.function]

    def takes_shard(self, module: Module, node: ast.Subscript, may_be_tuple: bool) -> bool:
        """Tells whether an index surely takes a shard, and not an item of a tuple."""
        if self.evidence.takes_shard(module, node):
            return True
        indexing = module.facts.indexings.get(node)
        is_sure = indexing is not None and indexing.stacked.confidence == Confidence.HIGH
        # float(x[0]) would fail if x were a tuple of stacked arrays, and so would f"{x[0]:.3f}".
        parent = module.parent(node)
        if is_sure and isinstance(node.value, ast.Name) and not may_be_tuple:
            return True
        if isinstance(parent, ast.FormattedValue):
            return parent.format_spec is not None
        if isinstance(parent, ast.Attribute):
            return parent.attr == "item"
        called = parent.func if isinstance(parent, ast.Call) else None
        return isinstance(called, ast.Name) and called.id in ("float", "int", "bool")

    def family(self, node: ast.ClassDef) -> str:
        """Returns one name for all classes of the program whose objects may share attributes."""
        return self._families.get(node.name, node.name)

    @functools.cached_property
    def _families(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, node in self._classes.items():
            bases = [each.name for each in self._with_bases(node) if uses_itself(each)]
            related = {found.get(each, each) for each in (name, *bases)}
            first = min(related)
            found |= dict.fromkeys(related, first)
            found |= {each: first for each, old in found.items() if old in related}
        return found

    def has_outside_base(self, node: ast.ClassDef) -> bool:
        """Tells whether a class derives from one that is not of the program."""
        names = {name for each in self._with_bases(node) for name in base_names(each)}
        return not names <= _PLAIN_BASES | self._classes.keys()

    def hands_on(self, node: ast.ClassDef) -> bool:
        """Tells whether an object may have the attributes of another, by ``__getattr__``."""
        return any(
            isinstance(part, ast.FunctionDef) and part.name in ("__getattr__", "__getattribute__")
            for each in self._with_bases(node)
            for part in each.body
        )

    def _with_bases(self, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        waiting, seen = [node], {node.name}
        while waiting:
            each = waiting.pop()
            yield each
            names = {*base_names(each)} - seen
            seen |= names
            waiting += [self._classes[name] for name in names if name in self._classes]

    def family_of(self, cls: Class) -> str:
        """Returns the same for a class that was followed."""
        return self.family(cls.node)

    def _of(self, made_at: Place) -> Map | None:
        key = (made_at.path, made_at.line, made_at.column)
        if key not in self._maps:
            if made_at not in self._makings:
                return None
            module, making = self._makings[made_at]
            record = self.evidence.record(module, making.node)
            self._maps[key] = _make(made_at, module, making.node, making, record)
        return self._maps[key]

    def _find_uses(self) -> dict[Identity, list[tuple[Module, ast.Call]]]:
        """Returns the calls of wrappers, by what they made."""
        found: dict[Identity, list[tuple[Module, ast.Call]]] = {}
        for module in self.modules:
            for node, held in module.facts.holders.items():
                if not isinstance(node, ast.Call):
                    continue
                callees = module.facts.callees.get(node, frozenset())
                called = {function.node for function, _ in functions(callees)}
                for fact in held:
                    if not isinstance(fact, Mapped) or fact.made_at not in self._wrappers:
                        continue
                    uses = found.setdefault(_identity(fact), [])
                    is_use = self._wrappers[fact.made_at].definition in called
                    if is_use and (module, node) not in uses:
                        uses.append((module, node))
        return {
            identity: uses
            for identity, uses in found.items()
            if uses and identity in self._made[identity[0]]
        }

    def _through(self, identity: Identity) -> Map:
        """Returns what a wrapper made for one of its users."""
        (module, use), *others = self._uses[identity]
        wrapper = self._wrappers[identity[0]]
        making = self._made[identity[0]][identity]
        made_at = module.place(use)
        key = (made_at.path, made_at.line, made_at.column)
        seen = self._maps.get(key)
        if seen is None:
            record = self.evidence.record_through(
                wrapper.module, wrapper.call, self._uses[identity]
            )
            seen = _make(made_at, module, use, making, record)
            seen.wrapper, seen.again = wrapper, tuple(others)
            for _, each in self._uses[identity]:
                seen.obstacle = seen.obstacle or wrapper.obstacle(each)
            self._maps[key] = seen
            self._identities[key] = identity
        elif self._identities[key] != identity:
            seen.obstacle = seen.obstacle or SEVERAL
        return seen


def _make(
    made_at: Place, module: Module, node: ast.AST, making: Making, record: Record | None
) -> Map:
    options = making.options
    in_axes, out_axes = _axes(options, "in_axes"), _axes(options, "out_axes")
    static = options.get("static_broadcasted_argnums")
    obstacle = _obstacle(module, node)
    if not obstacle and not (_is_plain(in_axes) and _is_plain(out_axes)):
        obstacle = AXES
    if not obstacle and static is not None and constant(static) is ...:
        obstacle = STATIC
    given = [keyword.arg for keyword in getattr(node, "keywords", ())]
    if not obstacle and "devices" in options and "devices" not in given:
        obstacle = DEVICES
    return Map(
        made_at,
        making.site,
        module,
        node,
        making.function,
        in_axes,
        out_axes,
        frozenset(integers(static) if static is not None else ()),
        _donated(making),
        obstacle,
        record,
        _axis_name(options),
    )


def _donated(making: Making) -> frozenset[int]:
    donated = making.options.get("donate_argnums")
    if donated is None:
        return frozenset()
    # What is donated in a way that is not seen may be any argument.
    return frozenset(range(64) if constant(donated) is ... else integers(donated))


def _axis_name(options: Mapping[str, Value]) -> object:
    found = constant(options["axis_name"]) if "axis_name" in options else None
    return found if found is None or isinstance(found, str) else ...


def _axes(options: Mapping[str, Value], name: str) -> object:
    return constant(options[name]) if name in options else 0


def _is_plain(axes: object) -> bool:
    if isinstance(axes, (tuple, list)):
        return all(axis is None or type(axis) is int for axis in axes)
    return axes is None or type(axes) is int


def _obstacle(module: Module, node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return BARE
    if any(keyword.arg is None for keyword in node.keywords):
        return UNPACKED
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Name) and wrappers.mapped_parameter_of(module, node, first.id):
        return WRAPPER
    above = module.parent(module.parent(node))
    if isinstance(above, ast.ClassDef) and isinstance(module.parent(node), ast.Assign):
        return CLASS_BODY
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return UNPACKED
    return ""
