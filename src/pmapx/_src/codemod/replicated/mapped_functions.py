"""The functions that a pmap maps or that calls call: which these are, and what these pass them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import positional
from pmapx._src.analysis.values import Bound, Class, Function, Partial, Value

_COLLECTIVES = frozenset(
    f"jax.lax.{name}" for name in ("psum", "pmean", "pmax", "pmin", "all_gather", "axis_index")
)
# Parts of an expression, and of a body, that a call of the function may pass over.
_MAY_NOT_RUN = (
    ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_ENDS = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)


def functions(known: Value) -> list[tuple[Function, int]]:
    """Returns the functions that a value may be, each with how many arguments it has already.

    Sets have no order, and a report must not change from run to run.
    """
    return sorted(_functions(known), key=lambda each: (each[0].module.path, each[0].node.lineno))


def _functions(known: Value) -> Iterator[tuple[Function, int]]:
    for fact in known:
        if isinstance(fact, Function):
            yield fact, 0
        elif isinstance(fact, Bound):
            yield fact.function, 1
        elif isinstance(fact, Partial):
            for function, taken in _functions(fact.function):
                yield function, taken + len(fact.args)


def runs_only_mapped(known: Value, axis: object) -> bool:
    """Tells whether functions fail outside of their map: every call of them reduces over its axis.

    JAX raises an error for an axis that nothing maps over.
    """
    found = functions(known)
    return isinstance(axis, str) and bool(found) and all(_reduces(f, axis) for f, _ in found)


def _reduces(function: Function, axis: str) -> bool:
    for statement in function.node.body if isinstance(function.node, ast.FunctionDef) else ():
        is_plain = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return))
        for part in _surely_run(statement) if is_plain else ():
            call = function.module.facts.calls.get(part)
            is_collective = call is not None and call.names and call.names <= _COLLECTIVES
            given = [each.value for each in ast.walk(part) if isinstance(each, ast.Constant)]
            if is_collective and axis in given:
                return True
        if any(isinstance(part, _ENDS) for part in ast.walk(statement)):
            return False
    return False


def _surely_run(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, _MAY_NOT_RUN):
            yield from _surely_run(part)


def one_arity(several: Iterable[Function], depth: int = 0) -> int:
    """Returns how many results functions give, -1 if they differ or do not tell."""
    found = {_arity(function, depth) for function in several}
    return found.pop() if len(found) == 1 else -1


def _arity(function: Function, depth: int) -> int:
    def of(result: ast.expr | None) -> int:
        if isinstance(result, ast.Tuple):
            return -1 if any(isinstance(e, ast.Starred) for e in result.elts) else len(result.elts)
        callees = function.module.facts.callees.get(result) if result is not None else None
        if callees and depth < 8 and all(isinstance(fact, (Function, Bound)) for fact in callees):
            return one_arity((each for each, _ in functions(callees)), depth + 1)
        return -1

    node = function.node
    if isinstance(node, ast.AsyncFunctionDef):
        return -1
    if depth and not isinstance(node, ast.Lambda) and node.decorator_list:
        # What a decorator makes of the results is not known.
        return -1
    found = set(map(of, _returned(node)))
    return found.pop() if len(found) == 1 else -1


def _returned(node: ast.AST) -> list[ast.expr | None]:
    """Returns the results of a function, nothing of a generator."""
    if isinstance(node, ast.Lambda):
        return [node.body]
    found: list[ast.expr | None] = []
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if isinstance(part, (ast.Yield, ast.YieldFrom)):
            return []
        if isinstance(part, ast.Return):
            found.append(part.value)
        elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(part)
    return found


def returns_tuple(function: Function, index: int, depth: int = 0) -> bool:
    """Tells whether one of a function's results, or the only one, is surely a tuple or list."""
    module, node = function.module, function.node
    found = _returned(node)
    if index >= 0:
        found = [each.elts[index] if isinstance(each, ast.Tuple) else None for each in found]
    bound = module.facts.definitions.bound
    return bool(found) and all(
        is_tuple(
            module,
            each,
            bound.get((node, each.id), ()) if isinstance(each, ast.Name) else (),
            depth + 1,
        )
        for each in found
    )


def is_tuple(
    module: Module, node: ast.expr | None, named: Iterable[Any] = (), depth: int = 0
) -> bool:
    """Tells whether an expression is surely a tuple or list; ``named`` binds it, if it is a name.

    ``depth`` is how many functions return it.
    """
    if isinstance(node, ast.Name):
        several = [None if each.steps else each.source for each in named]
        return bool(several) and all(is_tuple(module, each, (), depth) for each in several)
    callees = module.facts.callees.get(node) if isinstance(node, ast.Call) else None
    if callees and all(isinstance(fact, (Function, Bound)) for fact in callees):
        called = [each for each, _ in functions(callees)]
        is_plain = depth < 8 and not any(getattr(f.node, "decorator_list", ()) for f in called)
        return one_arity(called, 1) >= 0 or (
            is_plain and bool(called) and all(returns_tuple(f, -1, depth) for f in called)
        )
    return isinstance(node, (ast.Tuple, ast.List, ast.ListComp))


def items_given(node: ast.expr) -> int:
    """Returns how many items ``[f(x) for x in (a, b)]`` has, 0 if that is not written out."""
    generators = node.generators if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else []
    several = [each.iter for each in generators if not each.ifs]
    if len(generators) != 1 or not several or not isinstance(several[0], (ast.Tuple, ast.List)):
        return 0
    items = several[0].elts
    return 0 if any(isinstance(item, ast.Starred) for item in items) else len(items)


def takes_items(function: Function, index: int) -> bool:
    """Tells whether a function unpacks a parameter, or takes items of it by number."""
    names = positional(function.node.args)
    known = vars(function.node).setdefault("parameters_taken_apart", {})  # Asked for at every call.
    if index < len(names) and index not in known:
        own = [
            each
            for each in ast.walk(function.node)
            if isinstance(each, (ast.Assign, ast.Subscript))
            and isinstance(each.value, ast.Name)
            and each.value.id == names[index]
        ]
        known[index] = any(
            isinstance(each.targets[0], (ast.Tuple, ast.List))
            if isinstance(each, ast.Assign)
            else isinstance(each.slice, ast.Constant) and type(each.slice.value) is int
            for each in own
        )
    return bool(known.get(index))


def is_generator(function: ast.AST) -> bool:
    """Tells whether a function yields."""
    known = vars(function)  # Asked for at every call.
    if "is_generator" not in known:
        yields = (ast.Yield, ast.YieldFrom)
        known["is_generator"] = any(isinstance(part, yields) for part in ast.walk(function))
    return bool(known["is_generator"])


def is_static(function: ast.AST) -> bool:
    decorators = getattr(function, "decorator_list", ())
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in decorators)


def is_inside(callees: frozenset[Any]) -> bool:
    return all(isinstance(fact, (Function, Bound, Class)) for fact in callees)


def definition_of(callee: Function | Bound | Class) -> Function | None:
    """Returns the function that a call of something runs, None of a class without ``__init__``."""
    if isinstance(callee, Class):
        return next((f for f in callee.body.get("__init__", ()) if isinstance(f, Function)), None)
    return callee.function if isinstance(callee, Bound) else callee


def is_statement(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case))


def is_unpacking(call: ast.Call) -> bool:
    """Tells whether arguments of a call are unpacked: ``f(*args)``, ``f(**options)``."""
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )


def base_names(node: ast.ClassDef) -> list[str]:
    """Returns what a class derives from, without the modules of these."""
    return [getattr(base, "id", getattr(base, "attr", "")) for base in node.bases]


def uses_itself(node: ast.ClassDef) -> bool:
    """Tells whether methods of a class may use attributes: do more than call other methods."""
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    parts = list(ast.walk(node))
    calling = {
        part.func.value
        for part in parts
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in own
    }
    return any(getattr(part, "id", "") == "self" and part not in calling for part in parts)
