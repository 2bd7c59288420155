"""What each call does with a stacked value: of JAX's functions, of pmaps, of the program's own."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.values import Bound, Class, Function, Instance, Mapped, Named
from pmapx._src.codemod.replicated import copies
from pmapx._src.codemod.replicated.expressions import Expressions
from pmapx._src.codemod.replicated.groups import (
    NOTHING,
    OTHER,
    WHOLE,
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
from pmapx._src.codemod.replicated.keywords import keywords_in_order
from pmapx._src.codemod.replicated.one_liners import one_liner

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.maps import Map

# What these give has the axis that their argument has.
_SAME = known_names.IDENTITY - {"builtins.iter"} | {
    "jax.device_get",
    "numpy.asarray",
    "numpy.array",
}
_LOOKING = frozenset(
    {"builtins.isinstance", "builtins.type", "builtins.id", "builtins.hasattr", "builtins.callable"}
)
_OF_TREES = frozenset({"copy", "unfreeze", "_asdict", "block_until_ready"})


class Calls(Expressions):
    """Reads calls; every other expression is read as ``Expressions`` does."""

    def _call(self, node: ast.Call) -> Abstract:
        if self.self_name and any(self._is_self(arg) for arg in node.args):
            # What is called may change the object's attributes.
            self.publish()
            self._forget_own()
        callee = self._callee(node)
        outside = frozenset(fact.name for fact in callee if isinstance(fact, Named))
        if isinstance(node.func, ast.Attribute) and not self.is_own(node.func):
            base = self.value(node.func.value)
            if isinstance(base, Ref):
                return self._method(node, node.func, base)
            self.escape(base, node, f"its {node.func.attr} is called")
        if outside and len(outside) == len(callee):
            return self._outside(node, outside)
        if callee and all(isinstance(fact, Mapped) for fact in callee):
            found = [self.flow.maps.get(fact) for fact in callee if isinstance(fact, Mapped)]
            if all(found):
                return self._mapped(node, [each for each in found if each is not None])
        if callee and all(isinstance(fact, (Function, Bound, Class)) for fact in callee):
            return self._inside(node, list(callee))
        return self._lost(node)

    def _is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.self_name

    def _callee(self, node: ast.Call) -> frozenset[Any]:
        """Returns what a call calls: the map, where an object's method was replaced by its map."""
        callee = self.module.facts.callees.get(node, frozenset())
        maps = [fact for fact in callee if isinstance(fact, Mapped)]
        if maps and isinstance(node.func, ast.Attribute) and len(maps) < len(callee):
            own = {each for fact in maps if self._is_set_when_made(fact, node.func.attr)
                   for each in fact.function}  # fmt: skip
            if all(fact in own for fact in callee if not isinstance(fact, Mapped)):
                return frozenset(maps)
        return callee

    def _is_set_when_made(self, mapped: Mapped, name: str) -> bool:
        """Tells whether ``self.name = jax.pmap(self.name)`` stands in ``__init__`` itself."""
        site = self.flow.maps.get(mapped)
        if site is None:
            return False
        assigned = site.module.parent(site.node)
        above = site.module.parent(assigned)
        return (
            isinstance(assigned, ast.Assign)
            and isinstance(above, ast.FunctionDef)
            and above.name == "__init__"
            and any(isinstance(t, ast.Attribute) and t.attr == name for t in assigned.targets)
        )

    def _lost(self, node: ast.Call) -> Abstract:
        """Reads a call of something that is not known."""
        called = self.module.source.segment(self.module.place(node.func)).split("\n")[0]
        self.value(node.func)
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            inner = arg.value if isinstance(arg, ast.Starred) else arg
            self.escape(self.value(inner), arg, f"it goes to {called}(...)")
        return OTHER

    def _method(self, node: ast.Call, function: ast.Attribute, base: Ref) -> Abstract:
        held = [self.value(arg) for arg in node.args]
        held += [self.value(keyword.value) for keyword in node.keywords]
        place = self.module.place(node)
        if function.attr in _OF_TREES and not held:
            return Ref(base.element, base.is_leaf)
        if function.attr in ("items", "values") and not held and not base.is_leaf:
            return Pairs(base) if function.attr == "items" else Parts((Ref(base.element),))
        if function.attr in ("keys", "is_deleted", "delete"):
            return OTHER
        if function.attr in ("replace", "_replace") and not base.is_leaf:
            return self.flow.graph.joined([base, *held], place) or OTHER
        for each in (base, *held):
            self.escape(each, node, f"its {function.attr}(...) is called")
        return OTHER

    def _outside(self, node: ast.Call, called: frozenset[str]) -> Abstract:
        if called <= _LOOKING:
            for arg in node.args:
                self.value(arg)
            return OTHER
        if called == {"builtins.dict"} and not node.args:
            return self._container(node)
        if called == {"builtins.getattr"} and len(node.args) == 2:
            base = self.value(node.args[0])
            self.value(node.args[1])
            if isinstance(base, Ref) and not base.is_leaf:
                return Ref(base.element)
            self.escape(base, node, "an attribute of it is read")
            return OTHER
        only = node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None
        if called & copies.MAKERS and only is not None:
            return self._made(node, only, node.args[1] if len(node.args) > 1 else None)
        copied = copies.copied(self.module, node, called)
        if copied is not None:
            return self._made(node, copied, None)
        if called <= copies.UNREPLICATE and only is not None and len(node.args) == 1:
            return self._first(node, only)
        if called <= known_names.TREE_MAP and len(node.args) > 1:
            return self._tree_map(node)
        if called <= _SAME and only is not None:
            held = self.value(only)
            for arg in node.args[1:]:
                self.value(arg)
            if isinstance(held, Ref):
                return held
            self.escape(held, node, "it is converted")
            return OTHER
        return self._lost(node)

    def _made(
        self,
        node: ast.Call,
        tree: ast.expr,
        devices: ast.expr | None,
        maker: Function | None = None,
    ) -> Abstract:
        """A call that stacks copies: where a group begins."""
        self.escape(self.value(tree), node, "what is stacked is stacked already")
        element = self.flow.graph.element(node)
        element.is_made = True
        given = devices or next((k.value for k in node.keywords if k.arg == "devices"), None)
        change = Change(self.module, "place", node, tree, given, maker=maker)
        element.changes[node] = change
        return Ref(element)

    def _first(self, node: ast.Call, tree: ast.expr, around: str = "") -> Abstract:
        """A call that takes the first row of every leaf."""
        held = self.value(tree)
        found = list(refs(held))
        if found and has_other(held):
            self.escape(held, node, "only a part of what is unreplicated has a row a device")
        for ref in found:
            ref.element.changes[node] = Change(self.module, "call", node, tree, around=around)
        for ref in found[1:]:
            self.flow.graph.join(found[0].element, ref.element)
        return OTHER

    def _tree_map(self, node: ast.Call) -> Abstract:
        function, trees = node.args[0], node.args[1:]
        if copies.takes_first(node):
            return self._first(node, trees[0])
        held = [self.value(tree) for tree in trees]
        if not any(list(refs(each)) for each in held):
            self.value(function)
            return OTHER
        is_plain = isinstance(function, ast.Lambda) and not node.keywords
        if not is_plain or not all(isinstance(each, (Ref, Other)) for each in held):
            for each in held:
                self.escape(each, node, "a function is mapped over it that is not followed")
            return OTHER
        assert isinstance(function, ast.Lambda)
        leaves = [Ref(each.element, True) if isinstance(each, Ref) else each for each in held]
        result = self._applied(function, leaves)
        return Ref(result.element) if isinstance(result, Ref) else OTHER

    def _mapped(self, node: ast.Call, maps: list[Map]) -> Abstract:
        """A call of a pmapped function, or of one of several."""
        self.flow.resolved.add(node.func)
        graph, place = self.flow.graph, self.module.place(node)
        args = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
        is_open = len(args) != len(node.args)
        keywords = None if is_open else keywords_in_order(maps, node)
        args += [keyword.value for keyword in keywords or ()]
        held = [self.value(arg) for arg in args]
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                self.escape(self.value(arg.value), arg, "it is unpacked into arguments")
        results: list[Abstract] = []
        for each in maps:
            first = self._first_argument(each, node.func)
            each.counts.add(-1 if is_open or first is None else first + len(args))
            if keywords:
                each.by_keyword[node] = (self.module, keywords)
            elif node.keywords:
                each.has_keywords = True
            for keyword in node.keywords if keywords is None else ():
                self._keyword(each, keyword)
            for index, (arg, given) in enumerate(zip(args, held, strict=True), first or 0):
                if index not in each.static:
                    self._argument(each, index, given, arg)
            results.append(self._result(each))
        result = results[0]
        for other in results[1:]:
            result = graph.merge(result, other, place)
        return result

    def _keyword(self, each: Map, keyword: ast.keyword) -> None:
        """An argument by a keyword that cannot be written by position."""
        held = self.value(keyword.value)
        self.escape(held, keyword.value, "it is passed by keyword")
        index = each.index_of(keyword.arg) if keyword.arg is not None else None
        if index is not None and index not in each.static:
            self._argument(each, index, held, keyword.value)

    def _first_argument(self, each: Map, function: ast.expr) -> int | None:
        """Returns the position of a call's first argument: 1 if the object goes before it."""
        if not each.is_method:
            return 0
        if not isinstance(function, ast.Attribute):
            return None
        known = self.module.facts.holders.get(function.value, frozenset())
        is_object = self.is_own(function) or any(isinstance(fact, Instance) for fact in known)
        return 1 if is_object else None

    def _argument(self, each: Map, index: int, held: Abstract, arg: ast.expr) -> None:
        position = Position.of(each.made_at, index, is_output=False)
        element = self.flow.graph.element(position, position)
        place = self.module.place(arg)
        found = list(refs(held))
        for ref in found:
            self.flow.graph.join(element, ref.element)
        if not found or has_other(held):
            element.reasons.setdefault(place, "what is passed here was not made by replicate")
        if found and each.in_axis(index) != 0:
            element.reasons.setdefault(place, "it is passed where its rows are not mapped")

    def _result(self, each: Map) -> Abstract:
        count = each.arity
        if count is None or count < 0:
            return self._output(each, WHOLE)
        return Parts(tuple(self._output(each, index) for index in range(count)))

    def _output(self, each: Map, index: int) -> Abstract:
        if each.out_axis(index) != 0:
            return OTHER
        position = Position.of(each.made_at, index, is_output=True)
        return Ref(self.flow.graph.element(position, position))

    def _inside(self, node: ast.Call, callees: list[Any]) -> Abstract:
        """A call of a function of the program itself."""
        self.flow.resolved.add(node.func)
        if len(callees) == 1 and isinstance(callees[0], Function):
            short = one_liner(self.module, node, callees[0])
            if short is not None and short.kind == "first":
                return self._first(node, short.argument, short.around)
            if short is not None:
                return self._made(node, short.argument, None, callees[0])
        if isinstance(node.func, ast.Attribute) and self.is_own(node.func):
            self.publish()
            self._forget_own()
        held: Abstract = NOTHING
        for callee in callees:
            found = self._one_inside(node, callee)
            held = self.flow.graph.merge(held, found, self.module.place(node))
        return held

    def _forget_own(self) -> None:
        for path in [path for path in self.env if path.startswith(f"{self.self_name}.")]:
            del self.env[path]

    def _one_inside(self, node: ast.Call, callee: Any) -> Abstract:
        function, skipped = callee, 0
        if isinstance(callee, Class):
            init = [f for f in callee.body.get("__init__", ()) if isinstance(f, Function)]
            if not init:
                return self._container(node)
            function, skipped = init[0], 1
        elif isinstance(callee, Bound):
            function, skipped = callee.function, 1
        definition = function.node
        is_open = any(isinstance(arg, ast.Starred) for arg in node.args) or any(
            keyword.arg is None for keyword in node.keywords
        )
        is_simple = isinstance(definition, ast.FunctionDef) and not is_open
        if not is_simple or self.flow.is_traced(definition) or _is_generator(definition):
            return self._lost(node)
        self.flow.called.add(definition)
        arguments = definition.args
        positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][skipped:]
        every = {*positional, *(each.arg for each in arguments.kwonlyargs)}
        given: list[tuple[str | None, ast.expr]] = []
        given += [
            (positional[i] if i < len(positional) else None, arg) for i, arg in enumerate(node.args)
        ]
        given += [(k.arg if k.arg in every else None, k.value) for k in node.keywords]
        for name, arg in given:
            held = self.value(arg)
            if name is None:
                self.escape(held, arg, "it is passed on among other arguments")
                continue
            sent = self.flow.found.parameters.setdefault((definition, name), [])
            sent.append((held, self.module.place(arg)))
        if isinstance(callee, Class):
            return OTHER
        returned = self.flow.known.returns.get(definition, [])
        return self.flow.gathered(returned)

    def _container(self, node: ast.Call) -> Abstract:
        """A NamedTuple or dataclass of stacked values is one itself."""
        held = [self.value(arg) for arg in node.args if not isinstance(arg, ast.Starred)]
        held += [self.value(keyword.value) for keyword in node.keywords]
        return self.flow.graph.joined(held, self.module.place(node)) or OTHER


def _is_generator(function: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(function))
