"""Stacked values followed through a program, to every place that uses them."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence

from pmapx._src.analysis.definitions import Definition
from pmapx._src.analysis.definitions import bound as bound_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Place
from pmapx._src.codemod.decide.assigned_values import is_in_loop
from pmapx._src.codemod.replicated import by_field
from pmapx._src.codemod.replicated.groups import (
    MIXED,
    NOTHING,
    OTHER,
    SPLIT,
    Abstract,
    Change,
    Element,
    Other,
    Parts,
    Position,
    Ref,
    has_other,
    host_of,
    refs,
    shapes,
)
from pmapx._src.codemod.replicated.maps import Map, Maps, SiteKey
from pmapx._src.codemod.replicated.stacked_calls import StackedCalls
from pmapx._src.codemod.replicated.stacked_values import NOT_FOLLOWED
from pmapx._src.codemod.varying.processes import ProcessValues

MOST_ROUNDS = 12
_CONDITION = "it is a condition"
_SUM = "it is used in arithmetic"
# What a statement does with an expression: "" if the value is followed further.
_USES = {
    (ast.Assign, "value"): "",
    (ast.AnnAssign, "value"): "",
    (ast.AugAssign, "target"): _SUM,
    (ast.AugAssign, "value"): _SUM,
    (ast.For, "iter"): "",
    (ast.AsyncFor, "iter"): "",
    (ast.While, "test"): _CONDITION,
    (ast.If, "test"): _CONDITION,
    (ast.Assert, "test"): _CONDITION,
    (ast.match_case, "guard"): _CONDITION,
    (ast.Match, "subject"): "it is matched",
    (ast.withitem, "context_expr"): "it is a context",
    (ast.Return, "value"): "",
    (ast.Expr, "value"): "",
    (ast.arguments, "defaults"): "it is a default",
    (ast.arguments, "kw_defaults"): "it is a default",
    (ast.FunctionDef, "decorator_list"): "",
    (ast.AsyncFunctionDef, "decorator_list"): "",
}
# Bindings are read where they were recorded; annotations and patterns use no value.
_PASSED_OVER = frozenset(
    {"targets", "target", "optional_vars", "annotation", "returns", "pattern", "type_params"}
)


class Flow(StackedCalls):
    """One program: its modules, its pmaps, and where its stacked values go."""

    is_settled = False

    def __init__(
        self, modules: Sequence[Module], maps: Maps, stacked: Collection[str] = ()
    ) -> None:
        super().__init__(modules, maps, stacked)
        self.processes = ProcessValues(modules, maps, self.passed, self._set_to)
        # Parameters of functions: what callers pass, whether others pass no stacked value, where.
        self._parameters: dict[Element, tuple[list[Ref], bool, Place]] = {}
        # Functions that take stacked values, and that other code may call, too.
        self.passed_functions: set[ast.AST] = set()
        # The bindings of each module outside of traced functions.
        self._bound: dict[Module, list[tuple[ast.AST, Definition]]] = {}
        # The classes of each module with a base that is not read.
        self._classes: dict[Module, list[ast.ClassDef]] = {}
        # What is assigned to state, and is an argument whose shards were equal in a run.
        self._shown_equal: dict[ast.expr, tuple[Position, str]] = {}

    def _set_to(self, module: Module, node: ast.Attribute) -> tuple[list[Definition], bool]:
        """Returns what an attribute of an object may be set to, and whether its class sets it."""
        own = self._own_class(module, node)
        families = [self.maps.family(own)] if own else self._families_of(module, node.value)
        known = [self._attributes.get((family, node.attr), ()) for family in families]
        found = list(itertools.chain.from_iterable(known))
        others = [] if families else self._attributes_named.get(node.attr, [])
        return [*found, *others, *self._set_somewhere.get(node.attr, ())], bool(found)

    @functools.cached_property
    def loads(self) -> dict[str, list[tuple[Module, ast.AST]]]:
        """Where names are read, and attributes of these names."""
        found: dict[str, list[tuple[Module, ast.AST]]] = {}
        for module in self.modules:
            for node in module.nodes:
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    name = node.id if isinstance(node, ast.Name) else node.attr
                    found.setdefault(name, []).append((module, node))
        return found

    @functools.cached_property
    def renamed(self) -> frozenset[str]:
        """The names that a file imports by another name."""
        aliases = (n for module in self.modules for n in module.nodes if isinstance(n, ast.alias))
        return frozenset(alias.name for alias in aliases if alias.asname not in (None, alias.name))

    def follow(self) -> None:
        """Reads all modules until nothing new is found."""
        for _ in range(MOST_ROUNDS):
            self.graph.forget()
            self.maps.forget()
            self._before, self._values, self.resolved = self._values, {}, set()
            self._parameters.clear()
            for module in self.modules:
                self._statements(module, self.maps.connected.of(module))
                self._bindings(module)
                self._tables(module)
            is_new = self._connect()
            if not is_new and shapes(self._before) == shapes(self._values):
                self.is_settled = True
                return

    @functools.cached_property
    def local_functions(self) -> dict[ast.AST, ast.AST]:
        """The functions that only code of the function around them can name, and that function."""
        found: dict[ast.AST, ast.AST] = {}
        for module in self.modules:
            functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef)]
            shared = {name for node in module.nodes if isinstance(node, ast.Global)
                      for name in node.names}  # fmt: skip
            for function in functions:
                above = module.parent(function)
                while not isinstance(above, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                    above = module.parent(above)
                is_plain = not function.decorator_list and function.name not in shared
                if isinstance(above, ast.FunctionDef) and is_plain:
                    found[function] = above
        return found

    def _parameter(self, module: Module, node: ast.arg) -> Abstract:
        function = module.parent(module.parent(node))
        if isinstance(function, ast.Lambda):
            return self._leaf(module, node, function)
        sent = self.passed.get((function, node.arg))
        if not sent or node in self.cut:
            return OTHER
        held = [self.value(home, arg) for home, arg in sent]
        if not any(list(refs(each)) for each in held):
            return self._merged(held, module, node)
        known = module.visited.get(function)
        if known is not None and by_field.moved_by(self, known, node.arg) is not None:
            return OTHER
        return self._received(held, (node,), module.place(node))

    def _received(self, held: list[Abstract], key: tuple[object, ...], place: Place) -> Abstract:
        """Returns what a parameter is: a value of its own, until it makes a difference.

        A function that treats stacked values and others alike does not join its callers.
        """
        given = [each for each in held if not (isinstance(each, Other) and each.is_nothing)]
        if not given:
            return NOTHING
        first = given[0]
        if isinstance(first, Parts) and all(
            isinstance(each, Parts) and len(each.items) == len(first.items) for each in given
        ):
            columns = zip(*(each.items for each in given if isinstance(each, Parts)), strict=True)
            return Parts(tuple(
                self._received(list(column), (*key, index), place)
                for index, column in enumerate(columns)
            ))  # fmt: skip
        found = [ref for each in given for ref in refs(each)]
        if not found:
            return OTHER
        element = self.graph.element(key)
        element.is_parameter = True
        element.is_part |= all(ref.is_field for ref in found)
        if any(ref.is_field != element.is_part for ref in found):
            element.unsplit[place] = SPLIT
        self._parameters[element] = (found, any(map(has_other, given)), place)
        is_leaf = all(isinstance(each, Ref) and each.is_leaf for each in given)
        is_tuple = any(isinstance(each, Ref) and each.is_tuple for each in given)
        return Ref(element, is_leaf, is_tuple=is_tuple, host=host_of(found))

    def _not_made(
        self, module: Module, each: Map, position: Position, held: Abstract, arg: ast.expr
    ) -> None:
        """An argument that is not seen to be made equal, but was, in a run: its first shard is."""
        super()._not_made(module, each, position, held, arg)
        record = each.record
        if record is None or record.problem or module is not each.module:
            return
        is_equal = position.index not in {each.index_of(name) for name in record.unequal}
        if not is_equal or each.in_axis(position.index) != 0 or not isinstance(arg, ast.Name):
            return
        found = [d for d in self.definitions_of(module, arg) if self.defined(d) == OTHER]
        source = found[0].source if len(found) == 1 and not found[0].steps else None
        above = module.parent(source) if source is not None and list(refs(held)) else None
        # The first calls are compared, so that what is assigned must be what these take.
        is_once = isinstance(above, ast.Assign) and not is_in_loop(module, above)
        if source is not None and is_once and above.targets == [found[0].node]:  # type: ignore[union-attr]
            self._shown_equal[source] = (position, each.name)

    def _define(self, definition: Definition) -> Abstract:
        held = super()._define(definition)
        source = definition.source
        if source not in self._shown_equal or definition.steps or source is None:
            return held
        position, name = self._shown_equal[source]
        element = self.graph.element(position, position)
        change = Change(definition.module, "unstack", source, around=name)
        place = definition.module.place(source)
        element.boundaries[source] = (change, place, self.not_made)
        return Ref(element)

    def _connect(self) -> bool:
        """Joins parameters with what callers pass, where it matters; tells whether any was new."""
        is_new, is_joined = False, True
        while is_joined:
            is_joined = False
            mattering = {
                group[0].root
                for group in self.graph.groups()
                if any(each.matters for each in group)
            }
            for element, (found, _, _) in self._parameters.items():
                for ref in found if element.root in mattering else ():
                    if ref.element.root is not element.root:
                        self.graph.join(element, ref.element)
                        mattering.add(element.root)
                        is_new = is_joined = True
        for element, (_, is_mixed, place) in self._parameters.items():
            if is_mixed and element.root in mattering:
                element.reasons.setdefault(place, MIXED)
        self._spread_fields()
        return is_new

    def _spread_fields(self) -> None:
        """Notes what functions read of the fields of their arguments, which need not join them."""
        is_more = bool(self.stacked)
        while is_more:
            is_more = False
            for element, (found, _, _) in self._parameters.items():
                for ref in found if element.fields and not element.is_part else ():
                    is_more |= not element.fields.keys() <= ref.element.fields.keys()
                    ref.element.fields.update(element.fields)
                    ref.element.methods.update(element.methods)

    def state_before(self, each: Map, group: Collection[Element]) -> tuple[ast.stmt, str] | None:
        """Returns where a state of a group is seen on each way to a map, and its name there.

        That is the assignment of a variable, or, of a parameter, the statement of the map. It is
        of the class that the map is called with.
        """
        found = self._state_before(each, group)
        if found is None or not any(element.is_rebuilt for element in group):
            return found
        module, (statement, name) = each.module, found
        arguments = (f.args for f in module.functions_around(each.node))  # type: ignore[attr-defined]
        known = {a.arg: a for args in arguments for a in ast.walk(args) if isinstance(a, ast.arg)}
        assigned = statement.value if isinstance(statement, ast.Assign) else None
        is_state = assigned is not None and not each.made_at.is_inside(module.place(assigned))
        seen = by_field.origins(self, module, assigned if is_state else known[name], set())  # type: ignore[arg-type]
        taken = [
            by_field.origins(self, home, arg, set())
            for home, call in each.calls.values()
            for arg in (*call.args, *(keyword.value for keyword in call.keywords))
            if self._is_state(self.value(home, arg), group)
        ]
        return found if all(each == seen for each in taken) else None

    def _state_before(self, each: Map, group: Collection[Element]) -> tuple[ast.stmt, str] | None:
        module, node = each.module, each.node
        bound: set[str] = set()
        statement: ast.AST = node
        while not isinstance(node, (ast.Module, ast.ClassDef, ast.AsyncFunctionDef)):
            above = module.parent(node)
            blocks = [b for b in above.__dict__.values() if isinstance(b, list) and node in b]
            if isinstance(node, ast.stmt) and not isinstance(statement, ast.stmt):
                statement = node
            for before in reversed([s for b in blocks for s in b[: b.index(node)]]):
                for target, held in self._assigned(module, before):
                    if self._is_state(held, group) and target.id not in bound:
                        return before, target.id
                bound |= self._bound_otherwise(module, before, group)
            node = above
            if isinstance(node, ast.FunctionDef) and each.node not in node.decorator_list:
                found = self._state_passed(module, node, group, bound)
                # What a function around it binds is seen there as well.
                if found and isinstance(statement, ast.stmt):
                    return statement, found
                if found or not module.functions_around(node):
                    return None
                bound |= {*_stored(node), *bound_names(ast.walk(node.args))}
        return None

    def _bound_otherwise(
        self, module: Module, statement: ast.AST, group: Collection[Element]
    ) -> set[str]:
        """Returns the names that a statement binds, somewhere in it, to more than such a state."""
        states = [
            target.id
            for part in ast.walk(statement)
            for target, held in self._assigned(module, part)
            if self._is_state(held, group)
        ]
        stored = _stored(statement)
        return {name for name in stored if stored.count(name) > states.count(name)}

    def _state_passed(
        self, module: Module, function: ast.FunctionDef, group: Collection[Element], bound: set[str]
    ) -> str:
        """Returns the parameter of a function that a state of a group is, and is not bound anew."""
        # In a loop, a later statement may bind it as well.
        bound = bound.union(_stored(function))
        arguments = function.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.arg not in bound and self._is_state(self._parameter(module, each), group):
                return each.arg
        return ""

    def _assigned(self, module: Module, node: ast.AST) -> Iterator[tuple[ast.Name, Abstract]]:
        """Yields the variables that a statement assigns, and their values."""
        if not isinstance(node, ast.Assign):
            return
        target, held = node.targets[0], self.value(module, node.value)
        several = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        items = held.items if isinstance(held, Parts) else (held,)
        for each, item in zip(several, items, strict=False) if len(several) == len(items) else ():
            if isinstance(each, ast.Name):
                yield each, item

    def parameters_of(self, sites: Collection[SiteKey]) -> frozenset[ast.arg]:
        """Returns the parameters that maps are called with, of the first function on the way."""
        found: set[ast.arg] = set()
        waiting = [
            (module, arg)
            for site in sites
            for module, call in self.maps.by_key(site).calls.values()
            for arg in call.args
        ]
        seen: set[ast.arg] = set()
        while waiting:
            module, arg = waiting.pop()
            held = self.definitions_of(module, arg) if isinstance(arg, ast.Name) else ()
            for node in (each.node for each in held):
                if not isinstance(node, ast.arg) or node in seen:
                    continue
                seen.add(node)
                function = module.parent(module.parent(node))
                passed = self.passed.get((function, node.arg), [])
                if passed and all(self._is_parameter(home, given) for home, given in passed):
                    waiting += passed
                elif list(refs(self._parameter(module, node))):
                    found.add(node)
        return frozenset(found)

    def _is_parameter(self, module: Module, node: ast.expr) -> bool:
        held = self.definitions_of(module, node) if isinstance(node, ast.Name) else ()
        return bool(held) and all(isinstance(each.node, ast.arg) for each in held)

    def _is_state(self, held: Abstract, group: Collection[Element]) -> bool:
        is_state = isinstance(held, Ref) and not held.is_field
        return is_state and held.element.root is next(iter(group)).root  # type: ignore[union-attr]

    def _statements(self, module: Module, parts: Sequence[ast.AST]) -> None:
        for part in parts:
            if part in self._traced:
                for decorator in getattr(part, "decorator_list", ()):
                    self.value(module, decorator)
                self.read_traced(module, part)  # type: ignore[arg-type]
            else:
                self._statement(module, part)

    def _statement(self, module: Module, node: ast.AST) -> None:
        # What is read on the way may note something at the node, besides its fields.
        for field in node._fields:
            held = getattr(node, field, None)
            if not isinstance(held, (list, ast.AST)):
                continue
            why = _USES.get((type(node), field))  # type: ignore[arg-type]
            if why is None and field in _PASSED_OVER:
                continue
            for part in held if isinstance(held, list) else (held,):
                if isinstance(part, ast.expr):
                    value = self.value(module, part)
                    if why is None or why:
                        reason = NOT_FOLLOWED if why is None else why
                        self.escape(value, module, part, reason)
                elif isinstance(part, ast.AST):
                    self._statements(module, [part])

    def _tables(self, module: Module) -> None:
        """Notes attributes whose names are listed in a class that derives from one outside.

        ``CHECKPOINT_ATTRS = {"_params": "params"}`` is for code that reads and sets them so.
        """
        if module not in self._classes:
            found = (node for node in module.nodes if isinstance(node, ast.ClassDef))
            self._classes[module] = [cls for cls in found if self.maps.has_outside_base(cls)]
        for cls in self._classes[module]:
            tables = [each for each in cls.body if isinstance(each, (ast.Assign, ast.AnnAssign))]
            family = self.maps.family(cls)
            for part in (part for table in tables for part in ast.walk(table)):
                name = part.value if isinstance(part, ast.Constant) else None
                for each in self._attributes.get((family, name), ()):  # type: ignore[arg-type]
                    why = "its name is in a table that unknown code may use"
                    self.escape(self.defined(each), module, part, why)

    def _bindings(self, module: Module) -> None:
        if module not in self._bound:
            self._bound[module] = [
                (target, definition)
                for target, definition in module.facts.definitions.assigned.items()
                if not isinstance(target, ast.arg)
                and self.maps.connected.has(module, target)
                and not self.is_traced(module, target)
            ]
        for target, definition in self._bound[module]:
            held = self.defined(definition)
            if isinstance(target, ast.Attribute):
                own = self._own_class(module, target)
                if own or self._families_of(module, target.value):
                    continue
            elif not isinstance(target, ast.Subscript):
                continue
            for part in ast.iter_child_nodes(target):
                if isinstance(part, ast.expr):
                    stored = self.value(module, part)
                    self.escape(stored, module, target, "it is modified in place")
            self.escape(held, module, target, "it is stored where it cannot be followed")


def _stored(node: ast.AST) -> list[str]:
    """Returns the names that a statement binds somewhere in it."""
    parts = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return [part.id for part in parts if not isinstance(part.ctx, ast.Load)]
