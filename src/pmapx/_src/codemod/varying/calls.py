"""The calls of a body: of functions of the program, which are followed, and of all others."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from pmapx._src.analysis import values as facts
from pmapx._src.codemod.varying import known_calls
from pmapx._src.codemod.varying.bodies import Frame
from pmapx._src.codemod.varying.differing import Differing
from pmapx._src.codemod.varying.expressions import Expressions, any_of, within
from pmapx._src.codemod.varying.scopes import MAPPED, Scope, methods
from pmapx._src.codemod.varying.values import (
    Cause,
    Closure,
    Deferred,
    Either,
    Fresh,
    Gradient,
    Items,
    Library,
    Literal,
    NotFollowedError,
    Partial,
    Table,
    Type,
    Value,
    cause_of,
    functions_in,
    is_mutating,
    join,
    joined,
    vary,
)

# Calls within calls, and the same function within itself.
DEEPEST = 40
Keywords = dict[str, Value]


class Calls(Expressions):
    """One reading of a body, given which of its arguments vary."""

    def __init__(
        self,
        axis: object,
        *,
        has_other_axes: bool,
        differing: Differing,
        derived: dict[str, list[facts.Class]],
    ) -> None:
        """``axis`` is the mapped axis' name, ... if that is not known, None if it has none.

        ``differing`` are the functions that may ask for the device's index.
        """
        super().__init__()
        self.axis = axis
        self.has_other_axes = has_other_axes
        self.differing = differing
        self.derived = derived
        self._running: list[ast.AST] = []

    def define(self, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Value:
        """Returns a function that the body defines, as its decorators leave it."""
        held: Value = Closure(node=node, module=frame.scope.module, scope=frame.scope)
        for decorator in reversed(node.decorator_list):
            function = self.value(frame, decorator)
            held = self.call(frame, function, [held], {}, None, decorator)
        return held

    def _call(self, frame: Frame, node: ast.Call) -> Value:
        args: list[Value] = []
        rest: list[Value] = []
        keywords: Keywords = {}
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                held = self.value(frame, arg.value)
                if isinstance(held, Items) and not held.is_open and not rest:
                    args += [within(held, item) for item in held.items]
                else:
                    rest.append(any_of(held))
            elif rest:
                rest.append(self.value(frame, arg))
            else:
                args.append(self.value(frame, arg))
        for keyword in node.keywords:
            held = self.value(frame, keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = held
            elif isinstance(held, Table) and held.rest is None:
                keywords |= {name: within(held, item) for name, item in held.items.items()}
            else:
                rest.append(any_of(held))
        extra = Value(cause_of(*rest), tuple(rest)) if rest else None
        if isinstance(node.func, ast.Attribute):
            base = self.value(frame, node.func.value)
            found = self._method(frame, base, node, args, keywords, extra)
            if found is not None:
                return self.controlled(found)
            function = self.attribute(frame, base, node.func.attr, node.func)
        else:
            function = self.value(frame, node.func)
        return self.controlled(self.call(frame, function, args, keywords, extra, node))

    def _method(
        self,
        frame: Frame,
        base: Value,
        node: ast.Call,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
    ) -> Value | None:
        """Reads a call of a method of data; None if the function is found in another way."""
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        if name == "bind":
            # A primitive of the program's own may do anything.
            return Fresh(Cause(f"{ast.unparse(node.func)}(...)", node.lineno))
        given = [*args, *keywords.values(), *([rest] if rest is not None else ())]
        is_scaled = name == "value_and_grad" and len(args) == 1 and cause_of(base) is None
        if is_scaled and known_calls.is_mapped_axis(self, keywords.get("axis_name")):
            # Flax's DynamicScale, whose gradients are their mean over the axis.
            return Partial(function=Library(name=known_calls.SCALED_GRADIENT), args=args)
        is_data = type(base) is Value or isinstance(base, (Fresh, Items, Literal, Table))
        if not is_data:
            return None
        if isinstance(base, Table):
            if name in base.items or (
                base.cls is not None and methods(frame.scope.module, base.cls, name) is not None
            ):
                return None
            found = self._of_mapping(base, name, args, keywords, rest)
            if found is not None:
                return found
        elif name in ("replace", "_replace") and keywords and not args and rest is None:
            # A tree with other items in the place of some.
            return Table(base.cause, (), dict(keywords), base, method=name)
        is_discarded = isinstance(frame.scope.module.parent(node), ast.Expr)
        found_cause = cause_of(*given) or self.control
        if (is_discarded or is_mutating(name)) and given:
            if found_cause is not None:
                vary(base, found_cause)
            if isinstance(base, Items):
                held = [*base.items, *given]
                base.items[:] = [Value(cause_of(*held), tuple(held))]
                base.is_open = True
        return self.unknown(frame, name, [base, *given], node, is_method=True)

    def _of_mapping(
        self, base: Table, name: str, args: list[Value], keywords: Keywords, rest: Value | None
    ) -> Value | None:
        first = args[0] if args else None
        key = first.value if isinstance(first, Literal) else None
        if name in ("replace", "_replace") and not args and rest is None:
            changed = {**base.items, **keywords}
            return Table(base.cause, base.sources, changed, base.rest, base.cls, name)
        if name in ("get", "pop") and isinstance(key, str) and key in base.items:
            return joined([within(base, base.items[key]), *args[1:]])
        if name == "copy" and not args:
            return Table(base.cause, base.sources, dict(base.items), base.rest, base.cls)
        is_known = not args or (isinstance(first, Table) and first.rest is None)
        if name == "update" and base.cls is None and rest is None and len(args) < 2 and is_known:
            new = {**(first.items if isinstance(first, Table) else {}), **keywords}
            for each, held in new.items():
                before = base.items.get(each) or base.rest
                held = self.controlled(held)
                base.items[each] = held if before is None else join(before, held)
            return Literal(value=None)
        return None

    def call(
        self,
        frame: Frame,
        function: Value,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
        node: ast.AST,
    ) -> Value:
        """Returns what a call gives."""
        if isinstance(function, Either):
            several = function.options
            return joined(self.call(frame, f, args, keywords, rest, node) for f in several)
        if isinstance(function, Closure):
            return self._run(function, args, keywords, rest, node)
        if isinstance(function, Partial):
            whole = {**function.keywords, **keywords}
            return self.call(frame, function.function, [*function.args, *args], whole, rest, node)
        if isinstance(function, Gradient):
            return self._gradient(frame, function, args, keywords, rest, node)
        if isinstance(function, Type):
            return self._construct(frame, function.fact, args, keywords, rest, node)
        if isinstance(function, Library):
            if function.name == MAPPED:
                raise NotFollowedError("a nested mapped function", getattr(node, "lineno", 0))
            return known_calls.call(self, frame, function.name, args, keywords, rest, node)
        given = [*args, *keywords.values(), *([rest] if rest is not None else ())]
        if isinstance(function, Table) and function.cls is not None:
            found = methods(frame.scope.module, function.cls, "__call__")
            if found is not None:
                called = self.attribute(frame, function, "__call__", node)
                return self.call(frame, called, args, keywords, rest, node)
        if isinstance(function, Deferred):
            return self.outcome(frame, [function, *given], node)
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else "a function"
        return self.unknown(frame, name, [function, *given], node)

    def unknown(
        self,
        frame: Frame,
        name: str,
        given: Sequence[Value],
        node: ast.AST,
        *,
        is_method: bool = False,
    ) -> Value:
        """Returns what a function that is not followed gives: a function of what it is given."""
        line = getattr(node, "lineno", 0)
        may_be = self.differing.may_be_method if is_method else self.differing.may_be
        if may_be(name.rpartition(".")[2]):
            return Fresh(cause_of(*given) or Cause(f"{name}(...)", line))
        return self.outcome(frame, given, node)

    def outcome(self, frame: Frame, given: Sequence[Value], node: ast.AST) -> Value:
        """Returns what a function of some values may give; it may call those that are functions."""
        functions = functions_in(given)
        result = self.computed(node, *given)
        if not functions:
            return result
        before, self.varied = self.varied, None
        argument = Value(cause_of(*given))
        for function in functions:
            held = self.call(frame, function, [], {}, argument, node)
            result.cause = result.cause or cause_of(held)
        result.cause = result.cause or self.varied
        self.varied = before or self.varied
        return Deferred(result.cause, functions=functions)

    def _run(
        self,
        closure: Closure,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
        node: ast.AST,
    ) -> Value:
        """Reads the body of a function of the program."""
        line = getattr(node, "lineno", 0)
        if len(self._running) > DEEPEST:
            raise NotFollowedError("a call that is nested too deeply", line)
        if self._running.count(closure.node) > 1:
            # What else it may give is seen in the call around this one.
            given = [*closure.bound, *args, *keywords.values(), *([rest] if rest else ())]
            return self.computed(node, *given, *closure.scope.local())
        if isinstance(closure.node, ast.AsyncFunctionDef):
            raise NotFollowedError("an async function", line)
        scope = Scope(self.outside, closure.module, closure.scope.env, closure.scope)
        frame = Frame(scope)
        self._bind_arguments(closure, frame, [*closure.bound, *args], keywords, rest, node)
        self._running.append(closure.node)
        try:
            if isinstance(closure.node, ast.Lambda):
                return self.value(frame, closure.node.body)
            is_through = self.execute(frame, closure.node.body)
        finally:
            self._running.pop()
        if frame.yielded:
            return Items(items=frame.yielded, is_open=True)
        if is_through:
            frame.returned.append(Literal(value=None))
        return _without_none(frame.returned)

    def _bind_arguments(
        self,
        closure: Closure,
        frame: Frame,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
        node: ast.AST,
    ) -> None:
        signature = closure.node.args
        names = frame.scope.names
        positional = [each.arg for each in (*signature.posonlyargs, *signature.args)]
        every = [*positional, *(each.arg for each in signature.kwonlyargs)]
        names.update(zip(positional, args, strict=False))
        extra = {name: held for name, held in keywords.items() if name not in every}
        names.update({name: held for name, held in keywords.items() if name in every})
        around = Frame(closure.scope)
        defaults = dict(zip(reversed(positional), reversed(signature.defaults), strict=False))
        defaults |= {
            each.arg: default
            for each, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
            if default is not None
        }  # type: ignore[arg-type]
        for name in every:
            if name not in names:
                held = [self.value(around, defaults[name])] if name in defaults else []
                names[name] = joined([*held, *([rest] if rest is not None else ())] or [Value()])
        more = args[len(positional) :]
        if signature.vararg is not None:
            open_end = [rest] if rest is not None else []
            names[signature.vararg.arg] = Items(items=[*more, *open_end], is_open=rest is not None)
        elif more and rest is None:
            raise NotFollowedError("a call with more arguments", getattr(node, "lineno", 0))
        if signature.kwarg is not None:
            names[signature.kwarg.arg] = Table(items=extra, rest=rest)

    def _gradient(
        self,
        frame: Frame,
        gradient: Gradient,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
        node: ast.AST,
    ) -> Value:
        """A derivative varies with all that its function computes with, whatever this returns."""
        before, self.varied = self.varied, None
        result = self.call(frame, gradient.function, args, keywords, rest, node)
        given = [*args, *keywords.values(), *([rest] if rest is not None else ())]
        derivative = self.computed(node, result, *given)
        derivative.cause = derivative.cause or self.varied
        self.varied = before or self.varied
        if gradient.has_value:
            return Items(items=[result, derivative])
        if gradient.has_aux is None:
            return Fresh(derivative.cause)
        if gradient.has_aux:
            return Items(items=[derivative, self.part(result, 1, 2)])
        return derivative

    def _construct(
        self,
        frame: Frame,
        cls: facts.Class,
        args: list[Value],
        keywords: Keywords,
        rest: Value | None,
        node: ast.AST,
    ) -> Value:
        """Makes an object: by its ``__init__``, or of its fields."""
        init = methods(frame.scope.module, cls, "__init__")
        table = Table(cls=cls)
        if init is not None:
            for each in init:
                bound = self.outside.function(each, table)
                self.call(frame, bound, args, keywords, rest, node)
            return table
        fields = [
            each.target.id
            for each in cls.node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        given = [*args, *keywords.values(), *([rest] if rest is not None else ())]
        is_made = any(
            methods(frame.scope.module, cls, name) for name in ("__new__", "__post_init__")
        )
        is_plain = rest is None and len(args) <= len(fields) and not is_made
        is_plain = is_plain and not _inherits_fields(cls)
        if is_plain:
            table.method = _replacing(cls)
            table.items = {**dict(zip(fields, args, strict=False)), **keywords}
            table.rest = Value()
            return table
        table.rest = Value(cause_of(*given), tuple(given))
        return table


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


def _without_none(returned: list[Value]) -> Value:
    """Returns what a function returns; a path that returns nothing is not used as a value."""
    kept = [each for each in returned if not (isinstance(each, Literal) and each.value is None)]
    return joined(kept or returned)
