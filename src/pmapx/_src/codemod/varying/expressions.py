"""The expressions of a body: what each holds, and whether that varies."""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable
from typing import Any

from pmapx._src.analysis import values as facts
from pmapx._src.codemod.varying.bodies import Bodies, Frame
from pmapx._src.codemod.varying.scopes import Scope, methods
from pmapx._src.codemod.varying.values import (
    CALLABLE,
    Cause,
    Closure,
    Deferred,
    Either,
    Fresh,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Package,
    Table,
    Type,
    Value,
    cause_of,
    functions_in,
    joined,
    own_cause,
)

# What arrays have that is the same on all devices.
_METADATA = frozenset({"shape", "dtype", "ndim"})


class Expressions(Bodies):
    """Every expression but calls."""

    # All classes of the program, by their bases' names.
    derived: dict[str, list[facts.Class]]

    def value(self, frame: Frame, node: ast.expr) -> Value:
        """Returns what an expression holds."""
        self.left -= 1
        if self.left < 0:
            raise NotFollowedError("a body that is too long to follow", node.lineno)
        reader = _READERS.get(type(node))
        if reader is None:
            raise NotFollowedError(type(node).__name__, node.lineno)
        held = reader(self, frame, node)
        found = cause_of(held)
        if found is not None:
            self.varied = self.varied or found
        return held

    def computed(self, node: ast.AST, *values: Value | None) -> Value:
        """Returns what is computed from values."""
        found = cause_of(*values)
        if found is not None and not found.line:
            found = Cause(found.what, getattr(node, "lineno", 0))
        functions = functions_in(each for each in values if each is not None)
        return Deferred(found, functions=functions) if functions else Fresh(found)

    def constant(self, frame: Frame, node: ast.expr) -> bool | None:
        """Returns what a condition is, None if that is not known."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.constant(frame, node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            known = [self.constant(frame, part) for part in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in known:
                return decisive
            return None if None in known else not decisive
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(frame, node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
            held = self.value(frame, node)
            if isinstance(held, Literal):
                return bool(held.value)
            return True if isinstance(held, (Closure, Library)) else None
        return None

    def _compared(self, frame: Frame, node: ast.Compare) -> bool | None:
        left, right = self.value(frame, node.left), self.value(frame, node.comparators[0])
        is_negated = isinstance(node.ops[0], (ast.IsNot, ast.NotEq))
        if isinstance(left, Literal) and isinstance(right, Literal):
            if isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
                same = type(left.value) is type(right.value) and left.value == right.value
                return same != is_negated
            return None
        is_identity = isinstance(node.ops[0], (ast.Is, ast.IsNot))
        if is_identity and isinstance(right, Literal) and right.value is None:
            is_something = isinstance(left, (*CALLABLE, Library, Items, Table))
            return is_negated if is_something else None
        return None

    def part(self, held: Value, index: int, count: int) -> Value:
        """Returns one of the items that a value is unpacked into."""
        if isinstance(held, Either):
            return joined(self.part(option, index, count) for option in held.options)
        if isinstance(held, Items) and not held.is_open and len(held.items) == count:
            return within(held, held.items[index])
        return held if type(held) is Value or isinstance(held, Fresh) else any_of(held)

    def _name(self, frame: Frame, node: ast.Name) -> Value:
        return frame.scope.find(node.id)

    def _constant(self, frame: Frame, node: ast.Constant) -> Value:
        return Literal(value=node.value)

    def _sequence(self, frame: Frame, node: ast.Tuple | ast.List) -> Value:
        items: list[Value] = []
        is_plain = True
        for part in node.elts:
            if isinstance(part, ast.Starred):
                inner = self.value(frame, part.value)
                if isinstance(inner, Items) and not inner.is_open and inner.cause is None:
                    items += inner.items
                else:
                    is_plain = False
                    items.append(any_of(inner))
            else:
                items.append(self.value(frame, part))
        nodes = node.elts if len(node.elts) == len(items) and is_plain else ()
        return Items(items=items, nodes=nodes, is_open=not is_plain)

    def _set_of(self, frame: Frame, node: ast.Set) -> Value:
        return Items(items=[self.value(frame, part) for part in node.elts], is_open=True)

    def _dict(self, frame: Frame, node: ast.Dict) -> Value:
        table = Table()
        for key, item in zip(node.keys, node.values, strict=True):
            held = self.value(frame, item)
            name = self.value(frame, key) if key is not None else None
            if isinstance(name, Literal) and isinstance(name.value, str):
                table.items[name.value] = held
            elif key is None and isinstance(held, Table) and held.cause is None:
                table.items.update(held.items)
                if held.rest is not None:
                    table.rest = (
                        held.rest if table.rest is None else joined([table.rest, held.rest])
                    )
            else:
                given = [each for each in (name, held, table.rest) if each is not None]
                table.rest = Value(cause_of(*given), tuple(given))
        return table

    def _attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        return self.attribute(frame, self.value(frame, node.value), node.attr, node)

    def attribute(self, frame: Frame, base: Value, name: str, node: ast.AST) -> Value:
        """Returns what an attribute of a value holds."""
        if isinstance(base, Either):
            return joined(self.attribute(frame, each, name, node) for each in base.options)
        if isinstance(base, Library):
            return Library(name=f"{base.name}.{name}")
        if isinstance(base, Package):
            return self.outside.name_of(frame.scope.module, base.path, name)
        if isinstance(base, Table):
            return self._of_table(frame, base, name, node)
        if isinstance(base, Type):
            found = methods(frame.scope.module, base.fact, name)
            held = [self.outside.function(each) for each in found or ()]
            return joined(held) if held else Value()
        if isinstance(base, Closure):
            return Deferred(functions=[base])
        if name in _METADATA and not isinstance(base, Deferred):
            return Fresh()
        is_same = type(base) is Value or isinstance(base, (Fresh, Deferred, Items))
        return base if is_same else any_of(base)

    def _of_table(self, frame: Frame, table: Table, name: str, node: ast.AST) -> Value:
        if name in table.items:
            return within(table, table.items[name])
        if table.cls is not None:
            held = self._of_object(frame, table, table.cls, name, node)
            if held is not None:
                return held
        if name in _METADATA and table.cls is None:
            return Fresh()
        return within(table, table.rest) if table.rest is not None else any_of(table)

    def _of_object(
        self, frame: Frame, table: Table, cls: facts.Class, name: str, node: ast.AST
    ) -> Value | None:
        found: list[Value] = []
        for each in self._with_derived(cls):
            several = methods(frame.scope.module, each, name)
            if several is None and each is cls:
                return self._data_of(table, cls, name)
            for method in several or ():
                found.append(self._bound(frame, table, method, node))
        return joined(found)

    def _data_of(self, table: Table, cls: facts.Class, name: str) -> Value | None:
        """An attribute that methods set: what it holds, if that is set in one place."""
        published = cls.module.facts.definitions.published.get((cls.node, name), ())
        held = cls.attributes.get(name)
        if not held or table.rest is None:
            return None
        key = f"{name} of {cls.node.name}"
        # The same object for all that read it.
        if key not in table.items:
            table.items[key] = self.outside.value(cls.module, held, is_all=len(published) == 1)
        return within(table, table.items[key])

    def _with_derived(self, cls: facts.Class) -> list[facts.Class]:
        """Returns a class and those that derive from it, whose methods may replace its."""
        found = [cls]
        for each in found:
            found += [one for one in self.derived.get(each.node.name, ()) if one not in found]
        return found

    def _bound(self, frame: Frame, table: Table, method: facts.Function, node: ast.AST) -> Value:
        names = {getattr(each, "id", getattr(each, "attr", ""))
                 for each in getattr(method.node, "decorator_list", ())}  # fmt: skip
        if "staticmethod" in names:
            return self.outside.function(method)
        owner = Type(fact=table.cls) if "classmethod" in names and table.cls else table
        bound = self.outside.function(method, owner)
        if names & {"property", "cached_property"}:
            return self.call(frame, bound, [], {}, None, node)
        return bound

    @abc.abstractmethod
    def call(
        self,
        frame: Frame,
        function: Value,
        args: list[Value],
        keywords: dict[str, Value],
        rest: Value | None,
        node: ast.AST,
    ) -> Value: ...

    def _subscript(self, frame: Frame, node: ast.Subscript) -> Value:
        return self.item(self.value(frame, node.value), self.value(frame, node.slice), node)

    def item(self, base: Value, index: Value, node: ast.AST) -> Value:
        """Returns what an index chooses."""
        if isinstance(base, Either):
            return joined(self.item(option, index, node) for option in base.options)
        key = index.value if isinstance(index, Literal) else None
        if isinstance(base, Items) and type(key) is int and not base.is_open:  # noqa: SIM102
            if -len(base.items) <= key < len(base.items):
                return within(base, base.items[key])
        if isinstance(base, Table) and isinstance(key, str) and key in base.items:
            return within(base, base.items[key])
        if cause_of(index) is not None:
            return self.computed(node, index)
        if isinstance(base, (Fresh, Deferred)) or type(base) is Value:
            return base
        return any_of(base)

    def _slice(self, frame: Frame, node: ast.Slice) -> Value:
        parts = [self.value(frame, each) for each in (node.lower, node.upper, node.step) if each]
        return self.computed(node, *parts)

    def _operation(self, frame: Frame, node: Any) -> Value:
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return self.computed(node, *[self.value(frame, each) for each in parts])

    def _text(self, frame: Frame, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.value(frame, part.value)
        # Of tracers, a text has the shapes.
        return Fresh()

    def _any(self, frame: Frame, node: ast.BoolOp) -> Value:
        return joined(self.value(frame, part) for part in node.values)

    def _compare(self, frame: Frame, node: ast.Compare) -> Value:
        parts = [self.value(frame, part) for part in (node.left, *node.comparators)]
        is_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        # ``"mask" in batch`` asks for a key.
        is_key = isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(parts[0], Literal)
        if is_identity or (is_key and isinstance(parts[0].value, str)):  # type: ignore[attr-defined]
            return Fresh()
        return self.computed(node, *parts)

    def _choice(self, frame: Frame, node: ast.IfExp) -> Value:
        known = self.constant(frame, node.test)
        if known is not None:
            return self.value(frame, node.body if known else node.orelse)
        found = cause_of(self.value(frame, node.test))
        both = self.under(
            found, lambda: [self.controlled(self.value(frame, n)) for n in (node.body, node.orelse)]
        )
        return joined(both)

    def _lambda(self, frame: Frame, node: ast.Lambda) -> Value:
        return Closure(node=node, module=frame.scope.module, scope=frame.scope)

    def _named(self, frame: Frame, node: ast.NamedExpr) -> Value:
        held = self.value(frame, node.value)
        self.bind(frame, node.target, held)
        return held

    def _comprehension(self, frame: Frame, node: Any) -> Value:
        scope = Scope(self.outside, frame.scope.module, frame.scope.env, frame.scope)
        inner = Frame(scope)
        found: list[Value] = []
        for generator in node.generators:
            iterated = self.value(inner, generator.iter)
            if isinstance(iterated, Items) and iterated.items and not iterated.is_open:
                element = within(iterated, joined(iterated.items))
            else:
                element = any_of(iterated)
            self.bind(inner, generator.target, element)
            found += [self.value(inner, test) for test in generator.ifs]
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        held = [self.value(inner, part) for part in parts]
        tested = cause_of(*found)
        return Items(tested, (), held, is_open=True)

    def _starred(self, frame: Frame, node: ast.Starred) -> Value:
        return any_of(self.value(frame, node.value))

    def _yield(self, frame: Frame, node: ast.Yield | ast.YieldFrom) -> Value:
        if node.value is not None:
            frame.yielded.append(self.controlled(self.value(frame, node.value)))
        return Value()

    @abc.abstractmethod
    def _call(self, frame: Frame, node: ast.Call) -> Value: ...


def any_of(held: Value) -> Value:
    """Returns some part of a value."""
    return Value(cause_of(held), (held,))


def within(container: Value, part: Value) -> Value:
    """Returns a part of a container, which may have been changed as a whole."""
    found = own_cause(container)
    if found is None or cause_of(part) is not None:
        return part
    return Value(found, (part,))


_READERS: dict[type[ast.expr], Callable[[Expressions, Frame, Any], Value]] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._constant,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.Set: Expressions._set_of,
    ast.Dict: Expressions._dict,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.Slice: Expressions._slice,
    ast.BinOp: Expressions._operation,
    ast.UnaryOp: Expressions._operation,
    ast.BoolOp: Expressions._any,
    ast.Compare: Expressions._compare,
    ast.IfExp: Expressions._choice,
    ast.JoinedStr: Expressions._text,
    ast.Lambda: Expressions._lambda,
    ast.NamedExpr: Expressions._named,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Starred: Expressions._starred,
    ast.Yield: Expressions._yield,
    ast.YieldFrom: Expressions._yield,
    ast.Call: lambda reader, frame, node: reader._call(frame, node),
}
