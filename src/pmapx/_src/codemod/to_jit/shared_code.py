"""Functions of the source that several maps use: an edit of one is an edit for all of them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.to_jit.decisions import COLLECTIVES, Decision
from pmapx._src.source.files import first_line

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def refuse_conflicts(made: Sequence[Decision], modules: Sequence[Module]) -> None:
    """Refuses maps whose collectives another use of the same code needs to be something else."""
    functions = [
        (module, node)
        for module in modules
        for node in ast.walk(module.source.tree)
        if isinstance(node, _Function)
    ]
    while True:
        kept = [each for each in made if not each.reasons]
        for one in kept:
            why = _other_meaning(one, kept) or _not_by_name(one, modules)
            why = why or _not_reached(one, functions)
            why = why or _used_elsewhere(one, kept, functions, modules)
            if why:
                one.refuse(why)
        if len(kept) == sum(not each.reasons for each in made):
            return


def _other_meaning(one: Decision, kept: Iterable[Decision]) -> str:
    for other in kept:
        for span, each in one.replaced.items():
            theirs = other.replaced.get(span)
            if theirs is not None and theirs.power != each.power:
                return f"`{each.name}` at {_line(span)} means something else in {other.name}"
    return ""


def _not_by_name(one: Decision, modules: Sequence[Module]) -> str:
    """Names a collective that the source does not call itself, as one in a partial."""
    trees = {os.path.realpath(module.path): module.source.tree for module in modules}
    for span, each in one.replaced.items():
        is_called = any(
            isinstance(node, ast.Call)
            and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == span[1:]
            and ast.unparse(node.func).rpartition(".")[2] == each.name
            and (node.args or each.name == "axis_size")
            for node in (ast.walk(trees[span[0]]) if span[0] in trees else ())
        )
        if not is_called:
            return f"`{each.name}` at {_line(span)} is not a direct call with an operand"
    return ""


def _not_reached(one: Decision, functions: Sequence[tuple[Module, _Function]]) -> str:
    """Names a collective in a function of the map that the run did not reach."""
    for module, function in functions:
        if not _is_reached(one, module, function):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not _is_collective(node, one.axis):
                continue
            path = os.path.realpath(module.path)
            span = (path, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            if span not in one.replaced and not _is_of_inner(module, function, node):
                name = ast.unparse(node.func)
                where = f"{os.path.basename(module.path)}:{node.lineno}"
                return f"the run does not reach `{name}` at {where}"
    return ""


def _is_of_inner(module: Module, function: _Function, node: ast.AST) -> bool:
    """Whether a call is in a function inside another one, which has an answer of its own."""
    inner = [each for each in module.functions_around(node) if isinstance(each, _Function)]
    return bool(inner) and inner[0] is not function


def _is_collective(node: ast.Call, axis: str) -> bool:
    name = ast.unparse(node.func).rpartition(".")[2]
    if name not in COLLECTIVES:
        return False
    given = [each.value for each in node.keywords if each.arg == "axis_name"]
    given += node.args[COLLECTIVES[name] :][:1]
    # One over another axis may stay.
    return any(not isinstance(each, ast.Constant) or each.value == axis for each in given)


def _used_elsewhere(
    one: Decision,
    kept: Sequence[Decision],
    functions: Sequence[tuple[Module, _Function]],
    modules: Sequence[Module],
) -> str:
    """Names a use of an edited function that is outside of the maps that are converted."""
    maps = [map_.candidate.function for map_ in kept]
    for module, function in _edited(one, functions):
        if function in maps:  # Its name is that of the jitted function.
            continue
        rebound = _rebound_at(module, function, kept)
        for other in modules:
            for node in _references(other, module, function):
                if rebound and (other is not module or node.lineno > rebound):
                    continue
                around = other.functions_around(node)
                is_inside = any(
                    isinstance(each, _Function) and _is_reached(map_, other, each)
                    for each in around
                    for map_ in kept
                )
                path = os.path.realpath(other.path)
                is_map = any(map_.candidate.covers(path, node.lineno) for map_ in kept)
                if not is_inside and not is_map:
                    where = f"{os.path.basename(path)}:{node.lineno}"
                    return (
                        f"`{function.name}`, which has a collective, is also used at {where}, "
                        "outside the code that becomes jax.jit"
                    )
    return ""


def _rebound_at(module: Module, function: _Function, kept: Iterable[Decision]) -> int:
    """Returns the last line of ``step = jax.jit(step)``: from there on, the name is the map's."""
    body = getattr(module.parent(function), "body", [])
    for statement in body[body.index(function) + 1 :] if function in body else ():
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if [ast.unparse(target) for target in targets] == [function.name]:
            maps = [each.candidate for each in kept if each.candidate.module is module]
            is_map = any(each.jit is statement.value for each in maps)
            return (statement.end_lineno or 0) if is_map else 0
    return 0


def _edited(
    one: Decision, functions: Sequence[tuple[Module, _Function]]
) -> list[tuple[Module, _Function]]:
    """Returns the functions that an edit changes the meaning of: with a collective, or a user."""
    reached = [each for each in functions if _is_reached(one, *each)]
    spans = one.replaced
    found = [
        (module, function)
        for module, function in reached
        if any(
            span[0] == os.path.realpath(module.path)
            and function.lineno <= span[1] <= (function.end_lineno or 0)
            for span in spans
        )
    ]
    while True:
        names = {function.name for _, function in found}
        more = [
            (module, function)
            for module, function in reached
            if (module, function) not in found and names & set(_names(function))
        ]
        if not more:
            return found
        found += more


def _references(other: Module, module: Module, function: _Function) -> Iterator[ast.expr]:
    """Yields the uses of a function's name in a file."""
    is_same = other is module
    method = isinstance(module.parent(function), ast.ClassDef)
    stem = os.path.splitext(os.path.basename(module.path))[0]
    for node in ast.walk(other.source.tree):
        if isinstance(node, ast.Name) and node.id == function.name and not method:
            is_it = _is_bound_to(node, function, module) if is_same else _imports(other, node.id)
            if isinstance(node.ctx, ast.Load) and is_it:
                yield node
        elif isinstance(node, ast.Attribute) and node.attr == function.name:
            owner = ast.unparse(node.value)
            if owner == "self" if method and is_same else owner.rpartition(".")[2] == stem:
                yield node


def _is_bound_to(node: ast.Name, function: _Function, module: Module) -> bool:
    """Whether a name may be that of a function: no scope that is nearer binds it."""
    home = module.functions_around(function)[:1]
    for scope in module.functions_around(node):
        if [scope] == home:
            return True
        arguments = {part.arg for part in ast.walk(scope.args) if isinstance(part, ast.arg)}  # type: ignore[attr-defined]
        inner = {
            part
            for each in ast.walk(scope)
            if each is not scope and isinstance(each, _Function | ast.Lambda)
            for part in ast.walk(each)
            if part is not each
        }
        stored = {
            part.id
            for part in ast.walk(scope)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part not in inner
        }
        if node.id in arguments | stored:
            return False
    return not home


def _imports(module: Module, name: str) -> bool:
    return any(
        alias.name in (name, "*")
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def _names(function: _Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _is_reached(one: Decision, module: Module, function: _Function) -> bool:
    return (os.path.realpath(module.path), first_line(function)) in one.reached


def _line(span: Sequence[object]) -> str:
    return f"{os.path.basename(str(span[0]))}:{span[1]}"
