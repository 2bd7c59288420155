"""The calls of a body: of functions of the program, which are followed, and of all others."""

from __future__ import annotations

import abc
import ast
from collections.abc import Sequence

from pmapx._src.analysis import syntax
from pmapx._src.analysis import values as facts
from pmapx._src.analysis.interpreter.functions import match_arguments
from pmapx._src.codemod.varying import known_calls
from pmapx._src.codemod.varying.expressions import Expressions
from pmapx._src.codemod.varying.scopes import MAPPED, Scope
from pmapx._src.codemod.varying.values import (
    MUTATING,
    Cause,
    Closure,
    Deferred,
    Either,
    Fresh,
    Given,
    Gradient,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Partial,
    Table,
    Type,
    Value,
    any_of,
    cause_of,
    functions_in,
    is_none,
    join,
    joined,
    sharing,
    vary,
    within,
)

# Calls within calls.
DEEPEST = 40


class Calls(Expressions):
    """Every call, of which ``execute`` reads the body."""

    _running: tuple[ast.AST, ...] = ()

    @abc.abstractmethod
    def execute(self, scope: Scope, statements: Sequence[ast.stmt]) -> bool: ...

    def read_call(self, scope: Scope, node: ast.Call) -> Value:
        given = Given()
        rest: list[Value] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                held = self.value(scope, arg.value)
                if isinstance(held, Items) and not held.is_open and not rest:
                    given.args += [within(held, item) for item in held.items]
                else:
                    rest.append(any_of(held))
            else:
                (rest or given.args).append(self.value(scope, arg))
        for keyword in node.keywords:
            held = self.value(scope, keyword.value)
            if keyword.arg is not None:
                given.keywords[keyword.arg] = held
            elif isinstance(held, Table) and held.rest is None:
                given.keywords |= {name: within(held, item) for name, item in held.items.items()}
            else:
                rest.append(any_of(held))
        given.rest = any_of(*rest) if rest else None
        if isinstance(node.func, ast.Attribute):
            base = self.value(scope, node.func.value)
            found = self._method(scope, base, node.func.attr, given, node)
            if found is not None:
                return self.controlled(found)
            function = self.attribute(base, node.func.attr, node.func)
        else:
            function = self.value(scope, node.func)
        return self.controlled(self.call(function, given, node))

    def _method(
        self, scope: Scope, base: Value, name: str, given: Given, node: ast.Call
    ) -> Value | None:
        """Reads a call of a method of data; None if the function is found in another way."""
        if name == "bind":
            # A primitive of the program's own may do anything.
            return Fresh(Cause(f"{ast.unparse(node.func)}(...)", node.lineno))
        is_scaled = name == "value_and_grad" and len(given.args) == 1 and cause_of(base) is None
        if is_scaled and known_calls.is_mapped_axis(self, given.keywords.get("axis_name")):
            # Flax's DynamicScale, whose gradients are their mean over the axis.
            return Partial(function=Library(name=known_calls.SCALED_GRADIENT), args=given.args)
        if isinstance(base, Either):
            several = (
                (each, self._method(scope, each, name, given, node)) for each in base.options
            )
            return joined(
                found or self.call(self.attribute(each, name, node.func), given, node)
                for each, found in several
            )
        if type(base) not in (Value, Fresh, Items, Literal, Table, Deferred):
            return None
        is_step = name == "apply_gradients" and given.keywords.keys() >= {"grads"}
        if is_step and not given.args and given.rest is None:
            is_flax = self.program.differing.is_flax_step(scope.module.path)
            if is_flax and not isinstance(base, (Items, Literal)):
                return self._stepped(base, dict(given.keywords), node)
        if isinstance(base, Table):
            if name in base.items or self._has_method(base, name):
                return None
            found = self._of_mapping(base, name, given)
            if found is not None:
                return found
        elif name in ("replace", "_replace") and given.keywords and not given.args:  # noqa: SIM102
            if given.rest is None:
                # A tree with other items in the place of some.
                return Table(base.cause, (), dict(given.keywords), base, method=name)
        is_discarded = isinstance(scope.module.parent(node), ast.Expr)
        if is_discarded or name in MUTATING or isinstance(base, Items):
            self.store(base, given.every)
        may_differ = self.program.differing.may_be_method(name)
        result = self._unknown(name, [base, *given.every], node, may_differ)
        is_container = isinstance(base, (Items, Table))
        return sharing(result, [base, *given.every]) if is_container else result

    def _stepped(self, base: Value, fields: dict[str, Value], node: ast.Call) -> Value:
        """Flax's TrainState with its optimizer's step taken, and with other fields as given."""
        names = ("params", "opt_state", "tx")
        given = [fields.pop("grads"), *(self.attribute(base, name, node) for name in names)]
        may_differ = self.program.differing.may_be_method("update")
        made = self._unknown("apply_gradients", given, node, may_differ)
        if made.cause is not None:
            # Of a state whose parameters differ, the rest is not worth a spec.
            return Fresh(made.cause)
        step = self.computed(node, self.attribute(base, "step", node))
        changed = {"step": step, "params": made, "opt_state": made, **fields}
        if isinstance(base, Table):
            items = {**base.items, **changed}
            return Table(base.cause, base.sources, items, base.rest, base.cls, "replace")
        return Table(base.cause, (), changed, base, method="replace")

    def store(self, base: Value, given: Sequence[Value]) -> None:
        """Notes that a function may have put what it is given into an object."""
        found = cause_of(*given) or self.control
        if found is not None:
            vary(base, found)
        if isinstance(base, Items):
            base.items[:] = [any_of(*base.items, *given)]
            base.is_open = True

    def _of_mapping(self, base: Table, name: str, given: Given) -> Value | None:
        args, keywords = given.args, given.keywords
        first = args[0] if args else None
        key = first.value if isinstance(first, Literal) else None
        if name in ("replace", "_replace") and not args and given.rest is None:
            changed = {**base.items, **keywords}
            return Table(base.cause, base.sources, changed, base.rest, base.cls, name)
        if name in ("get", "pop") and isinstance(key, str) and key in base.items:
            return joined([within(base, base.items[key]), *args[1:]])
        if name == "copy" and not args:
            return Table(base.cause, base.sources, dict(base.items), base.rest, base.cls)
        is_known = not args or (isinstance(first, Table) and first.rest is None and len(args) == 1)
        if name == "update" and base.cls is None and given.rest is None and is_known:
            new = {**(first.items if isinstance(first, Table) else {}), **keywords}
            for each, held in new.items():
                before = base.items.get(each) or base.rest
                held = self.controlled(held)
                base.items[each] = held if before is None else join(before, held)
            return Literal(value=None)
        return None

    def call(self, function: Value, given: Given, node: ast.AST) -> Value:
        """Returns what a call gives."""
        if isinstance(function, Either):
            return joined(self.call(each, given, node) for each in function.options)
        if isinstance(function, Closure):
            return self._run(function, given, node)
        if isinstance(function, Partial):
            args, keywords = [*function.args, *given.args], {**function.keywords, **given.keywords}
            return self.call(function.function, Given(args, keywords, given.rest), node)
        if isinstance(function, Gradient):
            return self._gradient(function, given, node)
        if isinstance(function, Type):
            return self._construct(function.fact, given, node)
        if isinstance(function, Library):
            if function.name == MAPPED:
                raise NotFollowedError("a nested mapped function", getattr(node, "lineno", 0))
            return known_calls.call(self, function.name, given, node)
        if isinstance(function, Table) and self._has_method(function, "__call__"):
            return self.call(self.attribute(function, "__call__", node), given, node)
        if isinstance(function, Deferred):
            return self.outcome([function, *given.every], node)
        for each in (function, *function.sources):
            # It may be a method of a container.
            is_plain = isinstance(each, Items) or (isinstance(each, Table) and each.cls is None)
            if is_plain and not functions_in([each]):
                self.store(each, given.every)
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else "a function"
        may_be = self.program.differing.may_be(name.rpartition(".")[2])
        return self._unknown(name, [function, *given.every], node, may_be)

    def _unknown(self, name: str, given: Sequence[Value], node: ast.AST, may_differ: bool) -> Value:
        """Returns what a function that is not followed gives: a function of what it is given."""
        if may_differ:
            cause = Cause(f"{name}(...)", getattr(node, "lineno", 0))
            return Fresh(cause_of(*given) or cause)
        return self.outcome(given, node)

    def outcome(self, given: Sequence[Value], node: ast.AST) -> Value:
        """Returns what a function of some values may give; it may call those that are functions."""
        functions = functions_in(given)
        result = self.computed(node, *given)
        if not functions:
            return result
        before, self.varied = self.varied, None
        argument = Given(rest=Value(cause_of(*given)))
        for function in functions:
            held = self.call(function, argument, node)
            result.cause = result.cause or cause_of(held)
        result.cause = result.cause or self.varied
        self.varied = before or self.varied
        return Deferred(result.cause, functions=functions)

    def _run(self, closure: Closure, given: Given, node: ast.AST) -> Value:
        """Reads the body of a function of the program."""
        function, line = closure.node, getattr(node, "lineno", 0)
        if len(self._running) > DEEPEST:
            raise NotFollowedError("a call that is nested too deeply", line)
        given = Given([*closure.bound, *given.args], given.keywords, given.rest)
        if self._running.count(function) > 1:
            # What else it may give is seen in the call around this one.
            return self.computed(node, *given.every, *_held_around(closure))
        if isinstance(function, ast.AsyncFunctionDef):
            raise NotFollowedError("an async function", line)
        scope = Scope(closure.module, closure.scope, function)
        self._bind_arguments(closure, scope, given, line)
        running, control = self._running, self.control
        self._running = (*running, function)
        try:
            if isinstance(function, ast.Lambda):
                return self.value(scope, function.body)
            self.execute(scope, function.body)
        finally:
            self._running, self.control = running, control
        if scope.yielded:
            return Items(items=scope.yielded, is_open=True)
        # A path that returns nothing is not used as a value.
        return joined(each for each in scope.returned if not is_none(each))

    def _bind_arguments(self, closure: Closure, scope: Scope, given: Given, line: int) -> None:
        signature = closure.node.args
        names, more, extra = match_arguments(signature, given.args, given.keywords)
        if closure.defaults is None:
            around = Scope(closure.module, closure.scope)
            closure.defaults = self.defaults(around, closure.node)
        rest = [given.rest] if given.rest is not None else []
        for name in syntax.defaults(signature):
            if name not in names:
                held = [closure.defaults[name]] if name in closure.defaults else []
                names[name] = joined([*held, *rest] or [Value()])
        if signature.vararg is not None:
            names[signature.vararg.arg] = Items(items=[*more, *rest], is_open=bool(rest))
        elif more and not rest:
            raise NotFollowedError("a call with more arguments", line)
        if signature.kwarg is not None:
            names[signature.kwarg.arg] = Table(items=extra, rest=given.rest)
        scope.names.update(names)

    def _gradient(self, gradient: Gradient, given: Given, node: ast.AST) -> Value:
        """A derivative varies with all that its function computes with, whatever this returns."""
        before, self.varied = self.varied, None
        result = self.call(gradient.function, given, node)
        derivative = self.computed(node, result, *given.every)
        derivative.cause = derivative.cause or self.varied
        self.varied = before or self.varied
        if gradient.has_value:
            return Items(items=[result, derivative])
        if gradient.has_aux is None:
            return Fresh(derivative.cause)
        if gradient.has_aux:
            return Items(items=[derivative, self.part(result, 1, 2)])
        return derivative

    def _construct(self, cls: facts.Class, given: Given, node: ast.AST) -> Value:
        """Makes an object: by its ``__init__``, or of its fields."""
        methods = self.outside.methods
        init = methods(cls, "__init__")
        table = Table(cls=cls)
        if init is not None:
            for each in init:
                self.call(self.outside.function(each, table), given, node)
            return table
        fields = fields_of(cls.node)
        is_plain = given.rest is None and len(given.args) <= len(fields)
        is_made = any(methods(cls, name) for name in ("__new__", "__post_init__"))
        if is_plain and not is_made and not _inherits_fields(cls):
            table.method = _replacing(cls)
            table.items = {**dict(zip(fields, given.args, strict=False)), **given.keywords}
            table.rest = Value()
        else:
            table.rest = any_of(*given.every)
        return table


def _held_around(closure: Closure) -> list[Value]:
    """Returns what the functions around hold that are read themselves."""
    held: list[Value] = []
    scope = closure.scope
    while isinstance(scope, Scope):
        held = [*scope.names.values(), *held]
        scope = scope.around  # type: ignore[assignment]
    return held


def fields_of(cls: ast.ClassDef) -> list[str]:
    """Returns the fields of a class, as a dataclass has them."""
    targets = (each.target for each in cls.body if isinstance(each, ast.AnnAssign))
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _replacing(cls: facts.Class) -> str:
    """Returns the method that gives an object of a class with other fields, "" if none is known."""
    if any(ast.unparse(base).endswith("NamedTuple") for base in cls.node.bases):
        return "_replace"
    made = [ast.unparse(each) for each in cls.node.decorator_list]
    return "replace" if any("struct.dataclass" in each or "chex" in each for each in made) else ""


def _inherits_fields(cls: facts.Class) -> bool:
    return any(
        isinstance(fact, (facts.Class, facts.Exported)) for base in cls.bases for fact in base
    )
