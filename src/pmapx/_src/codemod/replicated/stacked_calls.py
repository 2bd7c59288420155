"""What each call does with a stacked value: of JAX's functions, of pmaps, of the program's own."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import given_arguments
from pmapx._src.analysis.values import Class, Function, Instance, Mapped, Method, Named
from pmapx._src.codemod.decide import copies, host_arrays
from pmapx._src.codemod.replicated import by_field, wrappers
from pmapx._src.codemod.replicated.groups import (
    OTHER,
    READING,
    SINGLE,
    SPLIT,
    Abstract,
    Change,
    Other,
    Pairs,
    Parts,
    Position,
    Ref,
    has_other,
    refs,
)
from pmapx._src.codemod.replicated.keywords import keywords_in_order, unpacked_count
from pmapx._src.codemod.replicated.mapped_functions import (
    definition_of,
    functions,
    is_generator,
    is_inside,
    is_statement,
    is_tuple,
    is_unpacking,
    takes_items,
)
from pmapx._src.codemod.replicated.maps import Map, Maps
from pmapx._src.codemod.replicated.one_liners import OneLiner, one_liner
from pmapx._src.codemod.replicated.stacked_values import StackedValues
from pmapx._src.codemod.text.read_by_name import name_given, reads_by_name
from pmapx._src.codemod.varying.processes import ProcessValues

# What these give has the axis that their argument has.
_SAME = known_names.IDENTITY - {"builtins.iter"} | copies.TO_HOST
# Orbax's conversion of stacked copies into one replicated array.
_TO_GLOBAL = "fully_replicated_host_local_array_to_global_array"
_LOOKING = frozenset(
    {"builtins.isinstance", "builtins.type", "builtins.id", "builtins.hasattr", "builtins.callable"}
)
# With other axes for some arguments, each needs a name.
KEYWORDS = "it is called with keyword arguments that have no known position"
_REPLACING = frozenset({"dataclasses.replace", "copy.replace"})
_LOWERING = frozenset({"lower", "trace"})
_OF_TREES = frozenset({"copy", "unfreeze", "_asdict", "block_until_ready"})


class StackedCalls(StackedValues):
    """Calls; every other expression is read as ``StackedValues`` does."""

    processes: ProcessValues
    follows_generators = False
    # Parameters that take stacked values: their functions stay as they are.
    cut: frozenset[ast.arg] = frozenset()
    # Those of functions that kept the values of other functions from losing their axis.
    refused: frozenset[ast.arg] = frozenset()
    # Those that go on to a map whose specs cannot be by field.
    without_specs: frozenset[ast.arg] = frozenset()
    not_made = "what is passed here was not created by replicate"

    def __init__(self, modules: Sequence[Module], maps: Maps, stacked: Collection[str] = ()):
        super().__init__(modules, maps, stacked)
        # The callees of calls that are understood.
        self.resolved: set[ast.AST] = set()
        # The functions that calls of the program call, and what these pass to each parameter.
        self.called: set[ast.AST] = set()
        self.passed: dict[tuple[ast.AST, str], list[tuple[Module, ast.expr]]] = {}
        for module in modules:
            for node in module.facts.callees:
                if isinstance(node, ast.Call) and not self.is_traced(module, node):
                    self._find_passed(module, node)

    def _find_passed(self, module: Module, node: ast.Call) -> None:
        callees = self._callee(module, node)
        if not callees or not is_inside(callees) or self._one_liner(module, node) is not None:
            return
        for callee in callees:
            target = definition_of(callee)
            function = self._followed(node, target) if target is not None else None
            if function is None:
                continue
            self.called.add(function)
            for name, arg in given_arguments(node, function, int(not isinstance(callee, Function))):
                if name is not None:
                    self.passed.setdefault((function, name), []).append((module, arg))

    def returned(self, module: Module, function: ast.AST) -> list[tuple[Abstract, ast.Return]]:
        """Returns what the statements of a function return."""
        found: list[tuple[Abstract, ast.Return]] = []
        waiting = list(ast.iter_child_nodes(function))
        while waiting:
            part = waiting.pop(0)
            if isinstance(part, ast.Return) and part.value is not None:
                found.append((self.value(module, part.value), part))
            elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                waiting += [each for each in ast.iter_child_nodes(part) if is_statement(each)]
        return found

    def _call(self, module: Module, node: ast.Call) -> Abstract:
        callee = self._callee(module, node)
        outside = frozenset(fact.name for fact in callee if isinstance(fact, Named))
        if isinstance(node.func, ast.Attribute) and not self._own_class(module, node.func):
            base = self.value(module, node.func.value)
            if isinstance(base, Ref):
                return self._method(module, node, node.func, base)
            self.escape(base, module, node, f"its {node.func.attr} is called")
        if outside and len(outside) == len(callee):
            return self._outside(module, node, outside)
        if callee and all(isinstance(fact, Mapped) for fact in callee):
            found = [self.maps.get(fact) for fact in callee if isinstance(fact, Mapped)]
            if all(found):
                return self._mapped(module, node, [each for each in found if each is not None])
        lowered = [fact.owner for fact in callee if isinstance(fact, Method)]
        sites = [self.maps.get(fact) for fact in lowered if isinstance(fact, Mapped)]
        if sites and len(sites) == len(callee) and all(sites) and node.func.attr in _LOWERING:  # type: ignore[attr-defined]
            # The arguments that it is lowered for are those of a call.
            self._mapped(module, node, [each for each in sites if each is not None])
            return OTHER
        if callee and is_inside(callee):
            return self._inside(module, node, list(callee))
        is_padded = wrappers.is_padded_call(self, module, node)
        return OTHER if is_padded else self._lost(module, node)

    def _callee(self, module: Module, node: ast.Call) -> frozenset[Any]:
        """Returns what a call calls: the map, where an object's method was replaced by its map."""
        callee = module.facts.callees.get(node, frozenset())
        maps = [fact for fact in callee if isinstance(fact, Mapped)]
        if maps and isinstance(node.func, ast.Attribute) and len(maps) < len(callee):
            made = {fact: self.maps.get(fact) for fact in maps}
            own = {each for fact, site in made.items() for each in fact.function
                   if site is not None and site.is_set_when_made(node.func.attr)}  # fmt: skip
            if all(fact in own for fact in callee if not isinstance(fact, Mapped)):
                return frozenset(maps)
        return callee

    def _lost(self, module: Module, node: ast.Call) -> Abstract:
        """Reads a call of something that is not known."""
        called = module.text(node.func).split("\n")[0]
        self.value(module, node.func)
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.hand_over(module, arg, f"it is passed to {called}(...)", called)
        return OTHER

    def _method(
        self, module: Module, node: ast.Call, function: ast.Attribute, base: Ref
    ) -> Abstract:
        held = self._arguments(module, node)
        if function.attr in _OF_TREES and not held:
            return base
        if function.attr in ("items", "values") and not held and not base.is_leaf:
            by_field.alike(base, module, node)
            return Pairs(base) if function.attr == "items" else Parts((base.alike(),))
        if function.attr in ("keys", "is_deleted", "delete"):
            return OTHER
        if function.attr in ("replace", "_replace") and not base.is_leaf:
            return by_field.replaced(self, module, node, base)
        why = f"its {function.attr}(...) is called"
        # Another method may change its object, which a copy is not.
        self.escape(base, module, function.value if function.attr in READING else node, why)
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.escape(self.value(module, arg), module, arg, why)
        return OTHER

    def _arguments(self, module: Module, node: ast.Call) -> list[Abstract]:
        return [self.value(module, e) for e in (*node.args, *(k.value for k in node.keywords))]

    def _outside(self, module: Module, node: ast.Call, called: frozenset[str]) -> Abstract:
        if called <= _LOOKING:
            self._arguments(module, node)
            return OTHER
        if called <= known_names.DICTS and not node.args:
            return self._container(module, node)
        only = node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None
        if only is not None and reads_by_name(module, node, called):
            self.escape_attributes(module, only, node, name_given(node))
        if called == {"builtins.getattr"} and len(node.args) == 2 and only is not None:
            base, _ = self._arguments(module, node)
            return by_field.got(self, base, module, node)
        base = self.value(module, only) if called <= _REPLACING and only is not None else OTHER
        if isinstance(base, Ref) and not base.is_leaf:
            return by_field.replaced(self, module, node, base)
        if called & copies.MAKERS and only is not None:
            return self._made(module, node, only, node.args[1] if len(node.args) > 1 else None)
        copied = copies.copied(module, node, called)
        if copied is not None:
            return self._made(module, node, copied.tree, copied.devices)
        if called <= copies.UNREPLICATE and only is not None and len(node.args) == 1:
            return self._first(module, node, only, copies.to_host(node, called))
        if called <= known_names.TREE_MAP and len(node.args) > 1:
            return self._tree_map(module, node)
        if called <= _SAME and only is not None:
            held, *others = self._arguments(module, node)
            # ``dict(state, rate=rate)`` has other values, too.
            if called <= known_names.DICTS and others:
                held = self._merged([held, *others], module, node)
            if isinstance(held, Ref):
                return held.on_host() if "numpy.array" in called else held
            self.escape(held, module, node, "it is converted")
            return OTHER
        return self._lost(module, node)

    def _made(
        self,
        module: Module,
        node: ast.Call,
        tree: ast.expr,
        devices: ast.expr | None,
        maker: Function | None = None,
    ) -> Abstract:
        """A call that stacks copies: where a group begins."""
        self.escape(self.value(module, tree), module, node, "it is already stacked")
        element = self.graph.element(node)
        element.is_made = True
        if self.maps.in_processes(module) and self.processes.differs(module, tree):
            element.reasons.setdefault(module.place(node), "it differs between processes")
        given = devices or next((k.value for k in node.keywords if k.arg == "devices"), None)
        element.changes[node] = Change(module, "place", node, tree, given, maker=maker)
        named = self.definitions_of(module, tree) if isinstance(tree, ast.Name) else ()
        made = Ref(element, is_tuple=is_tuple(module, tree, named))
        return made.on_host() if host_arrays.is_host_made(module, node) else made

    def _first(self, module: Module, node: ast.Call, tree: ast.expr, around: str = "") -> Abstract:
        """A call that takes the first shard of every leaf."""
        held = self.value(module, tree)
        found = list(refs(held))
        if found and has_other(held):
            why = "only a part of what is unreplicated has a leading device axis"
            self.hand_over(module, tree, why, "the code that takes the first of each")
            return OTHER
        for ref in found:
            by_field.view(ref, module, node)
            change = Change(module, "call", node, tree, around=around, is_part=ref.is_field)
            ref.element.changes[node] = change
            self.graph.join(found[0].element, ref.element)
        if not isinstance(held, Ref):
            by_field.alike(held, module, node)
        return OTHER

    def _tree_map(self, module: Module, node: ast.Call) -> Abstract:
        function, trees = node.args[0], node.args[1:]
        if copies.takes_first(node) or getattr(function, "attr", "") == _TO_GLOBAL:
            return self._first(module, node, trees[0])
        held = [self.value(module, tree) for tree in trees]
        if not any(list(refs(each)) for each in held):
            self.value(module, function)
            return OTHER
        if copies.is_like(module, function) and isinstance(held[0], Ref) and not node.keywords:
            return held[0]
        if not self._is_applied(module, node):
            for tree in trees:
                why = "an unknown function is mapped over it"
                self.hand_over(module, tree, why, "the function that is mapped over it")
            return OTHER
        assert isinstance(function, ast.Lambda)
        for each in held:
            by_field.alike(each, module, node)
        result = self.value(module, function.body)
        return result.alike() if isinstance(result, Ref) else OTHER

    def _is_applied(self, module: Module, node: ast.Call) -> bool:
        """Tells whether a tree_map applies a lambda to the leaves of what is followed."""
        held = [self.value(module, tree) for tree in node.args[1:]]
        is_plain = isinstance(node.args[0], ast.Lambda) and not node.keywords
        is_tuple = len(held) == 1 and isinstance(held[0], Parts) and not has_other(held[0])
        return is_plain and (is_tuple or all(isinstance(each, (Ref, Other)) for each in held))

    def _leaf(self, module: Module, node: ast.arg, function: ast.Lambda) -> Abstract:
        """Returns what the parameter of a lambda is: a leaf, if a tree_map applies it."""
        call = module.parent(function)
        if not isinstance(call, ast.Call) or call.args[:1] != [function]:
            return OTHER
        names = {getattr(fact, "name", "") for fact in self._callee(module, call)}
        is_tree_map = names and names <= known_names.TREE_MAP
        trees = dict(zip(function.args.args, call.args[1:], strict=False))
        if not is_tree_map or node not in trees or not self._is_applied(module, call):
            return OTHER
        tree = self.value(module, trees[node])
        if isinstance(tree, Parts):
            tree = self.graph.joined(tree.items, module.place(node)) or OTHER
        return tree.alike(is_leaf=True) if isinstance(tree, Ref) else tree

    def _mapped(self, module: Module, node: ast.Call, maps: list[Map]) -> Abstract:
        """A call of a pmapped function, or of one of several."""
        self.resolved.add(node.func)
        args, held = list[ast.expr](), list[Abstract]()
        is_starred = any(isinstance(arg, ast.Starred) for arg in node.args)
        is_open = is_starred and unpacked_count(maps, node) is None
        for arg in node.args:
            parts = self._unpacked(module, maps, node, arg)
            args += [arg] * len(parts)
            held += parts
        keywords = None if is_starred else keywords_in_order(module, maps, node)
        args += [keyword.value for keyword in keywords or ()]
        held += [self.value(module, keyword.value) for keyword in keywords or ()]
        for each in maps:
            first = self._first_argument(module, each, node.func)
            each.calls[node] = (module, node)
            each.counts.add(-1 if is_open or first is None else first + len(args))
            if keywords:
                each.by_keyword[node] = (module, keywords)
            elif node.keywords:
                each.has_keywords = True
            for keyword in node.keywords if keywords is None else ():
                self._keyword(module, each, keyword)
            for index, (arg, given) in enumerate(zip(args, held, strict=True), first or 0):
                if index not in each.static:
                    self.argument(module, each, index, given, arg)
        return self._merged([self._result(each) for each in maps], module, node)

    def _unpacked(
        self, module: Module, maps: list[Map], node: ast.Call, arg: ast.expr
    ) -> Sequence[Abstract]:
        """Returns the arguments that one of a call is: several if it is unpacked."""
        if not isinstance(arg, ast.Starred):
            return [self.value(module, arg)]
        held, count = self.value(module, arg.value), unpacked_count(maps, node) or 0
        if isinstance(held, Parts) and len(held.items) == count:
            return held.items
        if isinstance(held, Ref) and not held.is_leaf and count:
            return [by_field.part_of(self, held, module, arg)] * count
        self.escape(held, module, arg, "it is unpacked into arguments")
        return [OTHER] * count

    def _keyword(self, module: Module, each: Map, keyword: ast.keyword) -> None:
        held = self.value(module, keyword.value)
        self.escape(held, module, keyword, "it is passed by keyword")
        index = each.index_of(keyword.arg) if keyword.arg is not None else None
        if index is None:
            each.reasons.setdefault(module.place(keyword), KEYWORDS)
        elif index not in each.static:
            self.argument(module, each, index, held, keyword.value)

    def _first_argument(self, module: Module, each: Map, function: ast.expr) -> int | None:
        """Returns the position of a call's first argument: 1 if the object goes before it."""
        if not each.is_method:
            return 0
        if not isinstance(function, ast.Attribute):
            return None
        known = module.facts.holders.get(function.value, ())
        is_object = any(isinstance(fact, Instance) for fact in known)
        return 1 if is_object or self._own_class(module, function) else None

    def argument(
        self, module: Module, each: Map, index: int, held: Abstract, arg: ast.expr
    ) -> None:
        position = Position.of(each.made_at, index, is_output=False)
        element = self.graph.element(position, position)
        place = module.place(arg)
        found = list(refs(held))
        for ref in found:
            if isinstance(held, (Parts, Pairs)):
                ref.element.is_part |= self.graph.is_by_field and not ref.is_part
            element.is_part |= ref.is_field
            if element.is_part != ref.is_field:
                element.unsplit[place] = SPLIT
            self.graph.join(element, ref.element)
        if any(takes_items(f, taken + index) for f, taken in functions(each.function)):
            self.unpacked.add(element)
        if not found or has_other(held):
            self._not_made(module, each, position, held, arg)
        if found and each.in_axis(index) != 0:
            element.reasons.setdefault(place, "it is passed where its leading axis is not mapped")

    def _not_made(
        self, module: Module, each: Map, position: Position, held: Abstract, arg: ast.expr
    ) -> None:
        self.graph.element(position, position).reasons.setdefault(module.place(arg), self.not_made)

    def _result(self, each: Map) -> Abstract:
        count = each.arity
        if count is None or count < 0:
            return self._output(each, SINGLE)
        return Parts(tuple(self._output(each, index) for index in range(count)))

    def _output(self, each: Map, index: int) -> Abstract:
        if each.out_axis(index) != 0:
            return OTHER
        position = Position.of(each.made_at, index, is_output=True)
        element = self.graph.element(position, position)
        return Ref(element, is_tuple=each.gives_tuple(index), arrays=each.arrays_in(index))

    def _one_liner(self, module: Module, node: ast.Call) -> OneLiner | None:
        callee, *others = [*self._callee(module, node), None]
        is_one = isinstance(callee, Function) and len(others) == 1
        return one_liner(module, node, callee) if is_one else None

    def _inside(self, module: Module, node: ast.Call, callees: list[Any]) -> Abstract:
        """A call of a function of the program itself."""
        self.resolved.add(node.func)
        short = self._one_liner(module, node)
        if short is not None and short.kind == "first":
            return self._first(module, node, short.argument, short.around)
        if short is not None:
            return self._made(module, node, short.argument, None, callees[0])
        found = [self._from(module, node, each) for each in callees]
        is_dropped = isinstance(module.parent(node), ast.Expr)
        return OTHER if is_dropped else self._merged(found, module, node)

    def _from(self, module: Module, node: ast.Call, callee: Any) -> Abstract:
        target = definition_of(callee)
        if target is None:
            return self._container(module, node)
        function = self._followed(node, target)
        if function is None:
            return self._lost(module, node)
        given = given_arguments(node, function, int(not isinstance(callee, Function)))
        for name, arg in given:
            held = self.value(module, arg)
            if name is None:
                self.escape(held, module, arg, "it is passed on among other arguments")
            elif self.cut and any(
                p.arg == name for p in self.cut.intersection(ast.walk(function.args))
            ):
                self.hand_over(module, arg, f"{function.name} takes it stacked", function.name)
        moved = OTHER if isinstance(callee, Class) else by_field.moved(self, module, given, target)
        if moved is not None:
            return moved
        home = target.module
        held = self._once(
            (function, "returns"),
            lambda: self._merged((h for h, _ in self.returned(home, function)), home, function),
        )
        return by_field.as_passed(self, module, dict(given), function, held)

    def _followed(self, node: ast.Call, function: Function) -> ast.FunctionDef | None:
        """Returns the definition that a call goes to, None if it cannot be followed there."""
        definition = function.node
        is_open = is_unpacking(node) or definition in self._traced
        if not isinstance(definition, ast.FunctionDef) or is_open:
            return None
        return definition if self.follows_generators or not is_generator(definition) else None

    def _container(self, module: Module, node: ast.Call) -> Abstract:
        """A NamedTuple or dataclass of stacked values is one itself."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        held = [self.value(module, arg) for arg in given if not isinstance(arg, ast.Starred)]
        return self.graph.joined(held, module.place(node)) or OTHER
