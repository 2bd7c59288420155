"""What each expression does with a stacked value: passes it on, takes a row of it, or loses it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from pmapx.migrate import names
from pmapx.migrate.module import Module
from pmapx.migrate.replicated import copies
from pmapx.migrate.replicated.groups import (
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
from pmapx.migrate.values import Bound, Class, Confidence, Function, Instance, Mapped, Named

if TYPE_CHECKING:
    from pmapx.migrate.replicated.flow import Flow
    from pmapx.migrate.replicated.maps import Map

# Reading these of an array says nothing of its rows.
_HARMLESS = frozenset({"dtype", "weak_type", "is_deleted", "delete", "devices", "__class__"})
_OF_ARRAYS = (names.METADATA - _HARMLESS) | {"T", "mT", "at", "flat", "real", "imag"}
# What these give has the axis that their argument has.
_SAME = names.IDENTITY - {"builtins.iter"} | {"jax.device_get", "numpy.asarray", "numpy.array"}
_LOOKING = frozenset(
    {"builtins.isinstance", "builtins.type", "builtins.id", "builtins.hasattr", "builtins.callable"}
)
_UNREPLICATE = names.UNREPLICATE - {"flax.training.common_utils.get_metrics"}
_OF_TREES = frozenset({"copy", "unfreeze", "_asdict", "block_until_ready"})


class Expressions:
    """Reads expressions; ``Body`` adds the statements around them."""

    env: dict[str, Abstract]
    locals: set[str]
    around: list[ast.AST]
    global_names: set[str]
    family: str
    self_name: str
    node: Any

    def __init__(self, flow: Flow, module: Module) -> None:
        """Reads in one module."""
        self.flow = flow
        self.module = module

    def publish(self) -> None:
        """Tells other methods what attributes hold; ``Body`` does it."""
        raise NotImplementedError

    def bind(self, target: ast.expr, held: Abstract) -> None:
        """Gives a value to a target; ``Body`` does it."""
        raise NotImplementedError

    def escape(self, held: Abstract, node: ast.AST, why: str) -> None:
        """Notes that a value goes where it is not followed, so that its group stays stacked."""
        for ref in refs(held):
            ref.element.reasons.setdefault(self.module.place(node), why)

    def use_all(self, node: ast.AST) -> None:
        """Reads the expressions in something that is not understood."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.escape(self.value(child), child, "it is used in a way that is not followed")
            elif not isinstance(child, ast.stmt):
                self.use_all(child)

    def condition(self, node: ast.expr) -> None:
        """Reads a condition: ``x is None`` asks nothing of rows."""
        held = self.value(node)
        self.escape(held, node, "it is a condition")

    def value(self, node: ast.expr) -> Abstract:
        """Returns what an expression is, and notes what is done in it."""
        reader = getattr(self, f"_{type(node).__name__.lower()}", None)
        if reader is not None:
            held: Abstract = reader(node)
            return held
        self.use_all(node)
        return OTHER

    def element_of(self, iterated: Abstract, node: ast.expr) -> Abstract:
        """Returns what a loop's variable holds."""
        if isinstance(iterated, Pairs):
            return Parts((OTHER, iterated.ref))
        if isinstance(iterated, Parts) and iterated.items:
            held = iterated.items[0]
            for item in iterated.items[1:]:
                held = self.flow.graph.merge(held, item, self.module.place(node))
            return held
        self.escape(iterated, node, "a loop goes over it")
        return OTHER

    def is_own(self, node: ast.Attribute) -> bool:
        """Tells whether an attribute is of the object that a method is called on."""
        return (
            bool(self.self_name)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.self_name
        )

    def attribute_of(self, family: str, name: str) -> Abstract:
        """Returns what an attribute of a class's objects holds, from all that sets it."""
        sent = self.flow.known.attributes.get((family, name), [])
        return self.flow.gathered(sent) if sent else OTHER

    def family_inside(self) -> str:
        """Returns the class that a function defined here is a method of."""
        return self.family if isinstance(self.node, ast.ClassDef) else ""

    def _constant(self, node: ast.Constant) -> Abstract:
        return NOTHING if node.value is None else OTHER

    def _name(self, node: ast.Name) -> Abstract:
        is_here = node.id in self.locals and node.id not in self.global_names
        if is_here and not isinstance(self.node, ast.ClassDef):
            held = self.env.get(node.id, NOTHING)
            if isinstance(self.node, ast.Module):
                # A function may have bound it anew with ``global``.
                sent = self.flow.known.bindings.get((self.node, node.id), [])
                anew = [s for s in sent if node.id in self.flow.globals_of(self.module)]
                for other, place in anew:
                    held = self.flow.graph.merge(held, other, place)
            return held
        for scope in reversed([*self.around, self.module.source.tree]):
            sent = self.flow.known.bindings.get((scope, node.id), [])
            if sent and not isinstance(scope, ast.ClassDef):
                return self.flow.gathered(sent)
        return OTHER

    def _attribute(self, node: ast.Attribute) -> Abstract:
        if self.is_own(node):
            path = f"{self.self_name}.{node.attr}"
            return self.env[path] if path in self.env else self.attribute_of(self.family, node.attr)
        base = self.value(node.value)
        if isinstance(base, Ref):
            if node.attr in _HARMLESS:
                return OTHER
            if node.attr in _OF_ARRAYS:
                self.escape(base, node, f"its {node.attr} is read")
                return OTHER
            return Ref(base.element)
        self.escape(base, node, f"its {node.attr} is read")
        return self._of_object(node)

    def _of_object(self, node: ast.Attribute) -> Abstract:
        holders = self.module.facts.holders.get(node.value, frozenset())
        families = {
            self.flow.maps.family_of(fact.cls) for fact in holders if isinstance(fact, Instance)
        }
        held: Abstract = NOTHING
        for family in sorted(families):
            found = self.attribute_of(family, node.attr)
            held = self.flow.graph.merge(held, found, self.module.place(node))
        if families:
            return held
        # Whose attribute it is, is not known: it may be any object's.
        for (_, name), sent in self.flow.known.attributes.items():
            if name == node.attr and not self._is_module(node.value):
                for found, _ in sent:
                    self.escape(found, node, "it may be read here, through an object")
        return OTHER

    def _is_module(self, node: ast.expr) -> bool:
        found = self.module.env.find(node.id) if isinstance(node, ast.Name) else None
        return bool(found) and all(isinstance(fact, Named) for fact in found or ())

    def _subscript(self, node: ast.Subscript) -> Abstract:
        base = self.value(node.value)
        index = node.slice
        self.escape(self.value(index), index, "it is an index")
        chosen = index.value if isinstance(index, ast.Constant) else None
        if isinstance(index, ast.UnaryOp) and isinstance(index.operand, ast.Constant):
            chosen = -index.operand.value if isinstance(index.op, ast.USub) else None  # type: ignore[operator]
        if isinstance(base, Parts):
            if type(chosen) is int and -len(base.items) <= chosen < len(base.items):
                return base.items[chosen]
            self.escape(base, node, "a part of it is chosen that is not known")
            return OTHER
        if not isinstance(base, Ref):
            self.escape(base, node, "it is indexed")
            return OTHER
        if isinstance(chosen, str) and not base.is_leaf:
            return Ref(base.element)
        if type(chosen) is not int:
            self.escape(base, node, "a row is chosen by something else than a number")
            return OTHER
        if not self._takes_row(node, base):
            self.escape(base, node, "the index may choose from a tuple: the run did not get here")
            return OTHER
        base.element.changes[node] = Change(self.module, "index", node)
        return OTHER

    def _takes_row(self, node: ast.Subscript, base: Ref) -> bool:
        if base.is_leaf or self.flow.maps.evidence.takes_row(self.module, node):
            return True
        row = self.module.facts.indexings.get(node)
        is_sure = row is not None and row.stacked.confidence == Confidence.HIGH
        if is_sure and isinstance(node.value, ast.Name):
            return True
        # float(x[0]) would fail if x were a tuple of stacked arrays.
        parent = self.module.parent(node)
        called = parent.func if isinstance(parent, ast.Call) else None
        return isinstance(called, ast.Name) and called.id in ("float", "int", "bool")

    def _tuple(self, node: ast.Tuple | ast.List) -> Abstract:
        if any(isinstance(part, ast.Starred) for part in node.elts):
            self.use_all(node)
            return OTHER
        items = tuple(self.value(part) for part in node.elts)
        return Parts(items) if any(list(refs(item)) for item in items) else OTHER

    _list = _tuple

    def _dict(self, node: ast.Dict) -> Abstract:
        for key in node.keys:
            if key is not None:
                self.escape(self.value(key), key, "it is a key")
        held = [self.value(item) for item in node.values]
        return self.flow.graph.joined(held, self.module.place(node)) or OTHER

    def _ifexp(self, node: ast.IfExp) -> Abstract:
        self.condition(node.test)
        one, other = self.value(node.body), self.value(node.orelse)
        return self.flow.graph.merge(one, other, self.module.place(node))

    def _boolop(self, node: ast.BoolOp) -> Abstract:
        held: Abstract = NOTHING
        for part in node.values:
            held = self.flow.graph.merge(held, self.value(part), self.module.place(node))
        return held

    def _compare(self, node: ast.Compare) -> Abstract:
        is_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        for part in (node.left, *node.comparators):
            held = self.value(part)
            if not is_identity:
                self.escape(held, node, "it is compared")
        return OTHER

    def _namedexpr(self, node: ast.NamedExpr) -> Abstract:
        held = self.value(node.value)
        self.bind(node.target, held)
        return held

    def _lambda(self, node: ast.Lambda) -> Abstract:
        self.escape(self._applied(node, []), node.body, "a lambda returns it")
        return OTHER

    def _applied(self, node: ast.Lambda, given: list[Abstract]) -> Abstract:
        """Reads a lambda's body with its parameters bound."""
        before, names_before = self.env, self.locals
        parameters = [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        self.env = {**before, **dict.fromkeys(parameters, OTHER)}
        self.env.update(zip(parameters, given, strict=False))
        self.locals = names_before | set(parameters)
        held = self.value(node.body)
        self.env, self.locals = before, names_before
        return held

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Abstract:
        return self._comprehension(node, [node.elt])

    _setcomp = _listcomp
    _generatorexp = _listcomp

    def _dictcomp(self, node: ast.DictComp) -> Abstract:
        return self._comprehension(node, [node.key, node.value])

    def _comprehension(self, node: Any, parts: list[ast.expr]) -> Abstract:
        before, names_before = self.env, self.locals
        self.env = dict(before)
        self.locals = names_before | {
            part.id
            for generator in node.generators
            for part in ast.walk(generator.target)
            if isinstance(part, ast.Name)
        }
        for generator in node.generators:
            self.bind(generator.target, self.element_of(self.value(generator.iter), generator.iter))
            for test in generator.ifs:
                self.condition(test)
        for part in parts:
            self.escape(self.value(part), part, "it is collected")
        self.env, self.locals = before, names_before
        return OTHER

    def _call(self, node: ast.Call) -> Abstract:
        callee = self.module.facts.callees.get(node, frozenset())
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
        if called <= _UNREPLICATE and only is not None and len(node.args) == 1:
            return self._first(node, only)
        if called <= names.TREE_MAP and len(node.args) > 1:
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

    def _made(self, node: ast.Call, tree: ast.expr, devices: ast.expr | None) -> Abstract:
        """A call that stacks copies: where a group begins."""
        self.escape(self.value(tree), node, "what is stacked is stacked already")
        element = self.flow.graph.element(node)
        element.is_made = True
        given = devices or next((k.value for k in node.keywords if k.arg == "devices"), None)
        element.changes[node] = Change(self.module, "place", node, tree, given)
        return Ref(element)

    def _first(self, node: ast.Call, tree: ast.expr) -> Abstract:
        """A call that takes the first row of every leaf."""
        held = self.value(tree)
        found = list(refs(held))
        if found and has_other(held):
            self.escape(held, node, "only a part of what is unreplicated has a row a device")
        for ref in found:
            ref.element.changes[node] = Change(self.module, "call", node, tree)
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
        held = [self.value(arg) for arg in args]
        is_open = len(args) != len(node.args)
        for keyword in node.keywords:
            self.escape(self.value(keyword.value), keyword.value, "it is passed by keyword")
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                self.escape(self.value(arg.value), arg, "it is unpacked into arguments")
        results: list[Abstract] = []
        for each in maps:
            each.counts.add(-1 if is_open else len(args))
            each.has_keywords |= bool(node.keywords)
            for index, (arg, given) in enumerate(zip(args, held, strict=True)):
                if index not in each.static:
                    self._argument(each, index, given, arg)
            results.append(self._result(each))
        result = results[0]
        for other in results[1:]:
            result = graph.merge(result, other, place)
        return result

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
        return self.flow.gathered(returned) if returned else OTHER

    def _container(self, node: ast.Call) -> Abstract:
        """A NamedTuple or dataclass of stacked values is one itself."""
        held = [self.value(arg) for arg in node.args if not isinstance(arg, ast.Starred)]
        held += [self.value(keyword.value) for keyword in node.keywords]
        return self.flow.graph.joined(held, self.module.place(node)) or OTHER


def _is_generator(function: ast.AST) -> bool:
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(function))
