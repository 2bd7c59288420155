"""The expressions of a body: what each holds, and whether that varies."""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pmapx._src.analysis import syntax
from pmapx._src.analysis import values as facts
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.varying.scopes import PROPERTIES, Outside, Scope
from pmapx._src.codemod.varying.values import (
    CALLABLE,
    Cause,
    Closure,
    Deferred,
    Either,
    Fresh,
    Given,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Package,
    Table,
    Type,
    Value,
    any_of,
    cause_of,
    functions_in,
    is_none,
    join,
    joined,
    reached,
    sharing,
    vary,
    within,
)

if TYPE_CHECKING:
    from pmapx._src.codemod.varying.proof import SourceProof

# Expressions that one proof may read.
MOST_EXPRESSIONS = 60_000
# What arrays have that is the same on all devices.
_METADATA = frozenset({"shape", "dtype", "ndim"})


class Expressions(abc.ABC):
    """Every expression but calls: ``read_binop`` reads an ``ast.BinOp``."""

    def __init__(self, module: Module, axis: object, program: SourceProof) -> None:
        """``axis`` is the mapped axis' name, ... if that is not known, None if it has none."""
        self.outside = Outside(module)
        self.axis = axis
        self.program = program
        self._left = MOST_EXPRESSIONS
        # Why the path to here is taken on some devices only, and whether anything varied so far.
        self.control: Cause | None = None
        self.varied: Cause | None = None

    @abc.abstractmethod
    def call(self, function: Value, given: Given, node: ast.AST) -> Value: ...

    def value(self, scope: Scope, node: ast.expr) -> Value:
        """Returns what an expression holds."""
        self._left -= 1
        if self._left < 0:
            raise NotFollowedError("a body that is too long to follow", node.lineno)
        held: Value = self.reader(node)(scope, node)
        self.varied = self.varied or cause_of(held)
        return held

    def reader(self, node: ast.expr | ast.stmt) -> Callable[[Scope, Any], Any]:
        """Returns the method for a kind of node."""
        found = getattr(self, f"read_{type(node).__name__.lower()}", None)
        if found is None:
            raise NotFollowedError(type(node).__name__, node.lineno)
        return found  # type: ignore[no-any-return]

    def computed(self, node: ast.AST, *values: Value | None) -> Value:
        """Returns what is computed from values."""
        found = cause_of(*values)
        if found is not None and not found.line:
            found = Cause(found.what, getattr(node, "lineno", 0))
        functions = functions_in(each for each in values if each is not None)
        return Deferred(found, functions=functions) if functions else Fresh(found)

    def under(self, cause: Cause | None, read: Callable[[], Any]) -> Any:
        """Reads what happens on some devices only, if there is a cause for that."""
        before = self.control
        self.control = before or cause
        try:
            return read()
        finally:
            self.control = before

    def controlled(self, held: Value) -> Value:
        """Returns a value as it is on a path that some devices may not take."""
        if self.control is None or cause_of(held) is not None:
            return held
        functions = functions_in([held])
        if functions:
            return Deferred(self.control, (held,), functions)
        return Value(self.control, (held,))

    def bind(self, scope: Scope, target: ast.expr, held: Value) -> None:
        """Gives a target its value."""
        held = self.controlled(held)
        if isinstance(target, ast.Name):
            owner = scope.declared.get(target.id, scope)
            if not isinstance(owner, Scope):
                raise NotFollowedError(f"the global {target.id}", target.lineno)
            is_own = owner is scope
            owner.names[target.id] = held if is_own else join(owner.names[target.id], held)
        elif isinstance(target, (ast.Tuple, ast.List)):
            count = len(target.elts)
            has_star = any(isinstance(each, ast.Starred) for each in target.elts)
            for index, each in enumerate(target.elts):
                part = any_of(held) if has_star else self.part(held, index, count)
                self.bind(scope, each.value if isinstance(each, ast.Starred) else each, part)
        elif isinstance(target, ast.Attribute):
            self._set(self.value(scope, target.value), target.attr, held, target)
        elif isinstance(target, ast.Subscript):
            chosen = self.value(scope, target.slice)
            base = self.value(scope, target.value)
            key = chosen.value if isinstance(chosen, Literal) else None
            self._set(base, key if isinstance(key, str) else None, held, target)
            self._store(base, chosen, target)
        else:
            raise NotFollowedError("an assignment", target.lineno)

    def _set(self, base: Value, key: str | None, held: Value, node: ast.expr) -> None:
        if isinstance(base, Either):
            for option in base.options:
                self._set(option, key, held, node)
        elif isinstance(base, Table) and key is not None and not self._has_method(base, key):
            # It may be one of the tables that it comes from.
            for table in reached(base, has_parts=False):
                if not isinstance(table, Table):
                    self._store(table, held, node)
                    continue
                before = table.items.get(key)
                if before is None and table.rest is not None:
                    before = any_of(table.rest)
                table.items[key] = held if before is None else join(before, held)
        else:
            self._store(base, held, node)

    def _store(self, base: Value, held: Value, node: ast.expr) -> None:
        """Puts a value into an object, or into a name of another scope."""
        found = cause_of(held)
        if found is not None:
            vary(base, found)
        elif functions_in([held]):
            if not isinstance(base, Table):
                raise NotFollowedError("a function that is stored", node.lineno)
            base.rest = held if base.rest is None else join(base.rest, held)

    def constant(self, scope: Scope, node: ast.expr) -> bool | None:
        """Returns what a condition is, None if that is not known."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.constant(scope, node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            known = [self.constant(scope, part) for part in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in known:
                return decisive
            return None if None in known else not decisive
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(scope, node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Constant)):
            held = self.value(scope, node)
            if isinstance(held, Literal):
                return bool(held.value)
            return True if isinstance(held, (Closure, Library)) else None
        return None

    def _compared(self, scope: Scope, node: ast.Compare) -> bool | None:
        left, right = self.value(scope, node.left), self.value(scope, node.comparators[0])
        is_negated = isinstance(node.ops[0], (ast.IsNot, ast.NotEq))
        is_identity = isinstance(node.ops[0], (ast.Is, ast.IsNot))
        if isinstance(left, Literal) and isinstance(right, Literal):
            if is_identity or isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                same = type(left.value) is type(right.value) and left.value == right.value
                return same != is_negated
        elif is_identity and is_none(right):
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

    def element(self, iterated: Value) -> Value:
        """Returns what a loop's variable holds."""
        if isinstance(iterated, Items) and iterated.items and not iterated.is_open:
            return within(iterated, joined(iterated.items))
        return any_of(iterated)

    def values_of(self, mapping: Value) -> Value:
        """Returns what the values of a dict may be."""
        return any_of(mapping)

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        """Returns what an attribute of a value holds."""
        if isinstance(base, Either):
            return joined(self.attribute(each, name, node) for each in base.options)
        if isinstance(base, Library):
            return Library(name=f"{base.name}.{name}")
        if isinstance(base, Package):
            return self.outside.name_of(base.path, name)
        if isinstance(base, Table):
            return self._of_table(base, name, node)
        if isinstance(base, Type):
            found = self.outside.methods(base.fact, name)
            held = joined(map(self.outside.function, found)) if found else Value()
            return within(base, held)
        if isinstance(base, Closure):
            return Deferred(functions=[base])
        if name in _METADATA and not isinstance(base, Deferred):
            return Fresh()
        is_same = type(base) is Value or isinstance(base, (Fresh, Deferred, Items))
        return base if is_same else any_of(base)

    def _of_table(self, table: Table, name: str, node: ast.AST) -> Value:
        if name in table.items:
            return within(table, table.items[name])
        held = None if table.cls is None else self._of_object(table, table.cls, name, node)
        if held is not None:
            return held
        if name in _METADATA and table.cls is None:
            return Fresh()
        return within(table, table.rest) if table.rest is not None else any_of(table)

    def _has_method(self, table: Table, name: str) -> bool:
        return table.cls is not None and self.outside.methods(table.cls, name) is not None

    def _of_object(self, table: Table, cls: facts.Class, name: str, node: ast.AST) -> Value | None:
        found: list[Value] = []
        several = [cls]
        # Methods of classes that derive from it may replace its.
        for each in several:
            several += [c for c in self.program.derived.get(each.node.name, ()) if c not in several]
            methods = self.outside.methods(each, name)
            if methods is None and each is cls:
                return self._data_of(table, cls, name)
            found += [self._bound(table, method, node) for method in methods or ()]
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
            table.items[key] = self.outside.value(held, is_all=len(published) == 1)
        return within(table, table.items[key])

    def _bound(self, table: Table, method: facts.Function, node: ast.AST) -> Value:
        names = set(map(syntax.leaf, getattr(method.node, "decorator_list", ())))
        if "staticmethod" in names:
            return self.outside.function(method)
        owner = Type(fact=table.cls) if "classmethod" in names and table.cls else table
        bound = self.outside.function(method, owner)
        if names & PROPERTIES:
            return self.call(bound, Given(), node)
        return bound

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
        is_same = type(base) is Value or isinstance(base, (Fresh, Deferred))
        return base if is_same else any_of(base)

    def read_name(self, scope: Scope, node: ast.Name) -> Value:
        return self.outside.find(scope, node.id)

    def read_constant(self, scope: Scope, node: ast.Constant) -> Value:
        return Literal(value=node.value)

    def read_tuple(self, scope: Scope, node: ast.Tuple | ast.List) -> Value:
        items: list[Value] = []
        is_plain = True
        for part in node.elts:
            if isinstance(part, ast.Starred):
                inner = self.value(scope, part.value)
                if isinstance(inner, Items) and not inner.is_open and inner.cause is None:
                    items += inner.items
                else:
                    is_plain = False
                    items.append(any_of(inner))
            else:
                items.append(self.value(scope, part))
        nodes = node.elts if len(node.elts) == len(items) and is_plain else ()
        return Items(items=items, nodes=nodes, is_open=not is_plain)

    read_list = read_tuple

    def read_set(self, scope: Scope, node: ast.Set) -> Value:
        return Items(items=[self.value(scope, part) for part in node.elts], is_open=True)

    def read_dict(self, scope: Scope, node: ast.Dict) -> Value:
        table = Table()
        for key, item in zip(node.keys, node.values, strict=True):
            held = self.value(scope, item)
            name = self.value(scope, key) if key is not None else None
            if isinstance(name, Literal) and isinstance(name.value, str):
                table.items[name.value] = held
            elif key is None and isinstance(held, Table) and held.cause is None:
                table.items.update(held.items)
                several = [each for each in (table.rest, held.rest) if each is not None]
                table.rest = joined(several) if several else None
            else:
                held = held if key is not None else self.values_of(held)
                table.rest = held if table.rest is None else join(table.rest, held)
                table.cause = table.cause or cause_of(name)
        return table

    def read_attribute(self, scope: Scope, node: ast.Attribute) -> Value:
        return self.attribute(self.value(scope, node.value), node.attr, node)

    def read_subscript(self, scope: Scope, node: ast.Subscript) -> Value:
        return self.item(self.value(scope, node.value), self.value(scope, node.slice), node)

    def read_binop(self, scope: Scope, node: ast.BinOp | ast.UnaryOp | ast.Slice) -> Value:
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        held = [self.value(scope, each) for each in parts]
        # ``[x] * n + others`` has their items.
        return sharing(self.computed(node, *held), [h for h in held if isinstance(h, Items)])

    read_unaryop = read_slice = read_binop

    def read_joinedstr(self, scope: Scope, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.value(scope, part.value)
        # Of tracers, a text has the shapes.
        return Fresh()

    def read_boolop(self, scope: Scope, node: ast.BoolOp) -> Value:
        return joined(self.value(scope, part) for part in node.values)

    def read_compare(self, scope: Scope, node: ast.Compare) -> Value:
        parts = [self.value(scope, part) for part in (node.left, *node.comparators)]
        is_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        # ``"mask" in batch`` asks for a key.
        key = parts[0].value if isinstance(parts[0], Literal) else None
        is_key = isinstance(node.ops[-1], (ast.In, ast.NotIn)) and isinstance(key, str)
        is_known = is_identity or (is_key and len(node.ops) == 1)
        return Fresh() if is_known else self.computed(node, *parts)

    def read_ifexp(self, scope: Scope, node: ast.IfExp) -> Value:
        known = self.constant(scope, node.test)
        if known is not None:
            return self.value(scope, node.body if known else node.orelse)
        found = cause_of(self.value(scope, node.test))
        both = self.under(
            found, lambda: [self.controlled(self.value(scope, n)) for n in (node.body, node.orelse)]
        )
        return joined(both)

    def read_lambda(self, scope: Scope, node: ast.Lambda | ast.FunctionDef) -> Value:
        defaults = self.defaults(scope, node)
        return Closure(node=node, module=scope.module, scope=scope, defaults=defaults)

    def defaults(
        self, scope: Scope, node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> dict[str, Value]:
        """Returns the defaults of a function's parameters."""
        found = syntax.defaults(node.args).items()
        return {name: self.value(scope, each) for name, each in found if each is not None}

    def read_namedexpr(self, scope: Scope, node: ast.NamedExpr) -> Value:
        held = self.value(scope, node.value)
        around = scope.function_scope
        # In a comprehension, it is a name of the function around that.
        self.bind(around if isinstance(around, Scope) else scope, node.target, held)
        return held

    def read_listcomp(self, scope: Scope, node: Any) -> Value:
        inner = Scope(scope.module, scope)
        found: list[Value] = []
        for generator in node.generators:
            iterated = self.value(inner, generator.iter)
            self.bind(inner, generator.target, self.element(iterated))
            found += [self.value(inner, test) for test in generator.ifs]
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        held = [self.value(inner, part) for part in parts]
        if isinstance(node, ast.DictComp):
            return Table(cause_of(*found, held[0]), rest=held[1])
        return Items(cause_of(*found), (), held, is_open=True)

    read_setcomp = read_generatorexp = read_dictcomp = read_listcomp

    def read_starred(self, scope: Scope, node: ast.Starred) -> Value:
        return any_of(self.value(scope, node.value))

    def read_yield(self, scope: Scope, node: ast.Yield | ast.YieldFrom) -> Value:
        if node.value is not None:
            scope.yielded.append(self.controlled(self.value(scope, node.value)))
        return Value()

    read_yieldfrom = read_yield
