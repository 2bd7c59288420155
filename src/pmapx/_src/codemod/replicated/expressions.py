"""What each expression does with a stacked value: passes it on, takes a row of it, or loses it."""

from __future__ import annotations

import abc
import ast
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence, Instance, Named
from pmapx._src.codemod.replicated.groups import (
    NOTHING,
    OTHER,
    Abstract,
    Change,
    Pairs,
    Parts,
    Ref,
    refs,
)

if TYPE_CHECKING:
    from pmapx._src.codemod.replicated.flow import Flow

# Reading these of an array says nothing of its rows.
_HARMLESS = frozenset({"dtype", "weak_type", "is_deleted", "delete", "devices", "__class__"})
_OF_ARRAYS = (known_names.METADATA - _HARMLESS) | {"T", "mT", "at", "flat", "real", "imag"}


class Expressions(abc.ABC):
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

    @abc.abstractmethod
    def publish(self) -> None:
        """Tells other methods what the object's attributes hold here."""

    @abc.abstractmethod
    def bind(self, target: ast.expr, held: Abstract) -> None:
        """Gives a value to a target."""

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

    def part_of(self, whole: Ref) -> Ref:
        """Returns a part of a tree, which holds together with all others."""
        whole.element.is_taken_apart = True
        return Ref(whole.element)

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
        return self.flow.gathered(sent) if sent else self.flow.unseen

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
        return self.flow.unseen

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
            return self.part_of(base)
        self.escape(base, node, f"its {node.attr} is read")
        return self._of_object(node)

    def families_of(self, node: ast.expr) -> list[str]:
        """Returns the classes that an object may be of, none if that is not known."""
        holders = self.module.facts.holders.get(node, frozenset())
        objects = [fact for fact in holders if isinstance(fact, Instance)]
        return sorted({self.flow.maps.family_of(fact.cls) for fact in objects})

    def _of_object(self, node: ast.Attribute) -> Abstract:
        families = self.families_of(node.value)
        held: Abstract = NOTHING
        for family in families:
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
            return self.part_of(base)
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
