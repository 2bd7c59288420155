"""Whether calls of a map give numbers of Python's for replicated arguments, or arrays.

In a multi-process program, arrays become global arrays; numbers are given as they are. A value is
followed back through names, parameters, attributes and functions of the program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from pmapx._src.analysis import known_names
from pmapx._src.analysis.definitions import EACH, Definition, taken
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import defaults, leaf
from pmapx._src.analysis.values import Bound, Function, Mapped
from pmapx._src.codemod.decide.array_expressions import ArrayExpressions, is_number
from pmapx._src.codemod.decide.assigned_values import attribute_values, block_of, passed_values
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms.use import Use

NUMBER, ARRAY, OTHER = "a number", "an array", "not known"
Kinds = frozenset[str]
# Objects of settings hold no arrays that are on devices.
_SETTINGS = re.compile(r"(?i)_*(args|flags|(?:\w+_)?(?:config|cfg|conf|hparams|hps|opts|options))")
_NUMBERS = frozenset({"int", "float", "bool"})
# What these return is like their first argument.
_LIKE_FIRST = frozenset({"jax.device_put", "jax.device_put_replicated", "jax.block_until_ready"})
_MOST_STEPS = 8


def is_always_number(use: Use, position: int, call: ast.Call | None = None) -> bool:
    """Returns whether calls give numbers of Python's for an argument, which are not converted."""
    return _given(use, position, call) == {NUMBER}


def is_number_unknown(use: Use, position: int, call: ast.Call | None = None) -> bool:
    """Returns whether a replicated argument may be a number in some calls, and not in others."""
    if position in use.known_layout.static or use.known_layout.in_axes_of(position) is not None:
        return False
    if position in use.known_layout.merged or position in use.replicated:
        return False
    given = _given(use, position, call)
    if NUMBER in given:
        return given != {NUMBER}
    return ARRAY not in given and not _is_tree(use, position)


def _given(use: Use, position: int, only: ast.Call | None) -> Kinds:
    """Returns what calls give for an argument, nothing if none is known."""
    found: list[Kinds] = []
    for module, call in map_calls(use.module, use.site):
        if only in (None, call):
            args = call.args[position - use.is_method :]
            named = [k.value for k in call.keywords if k.arg in (use.names or [])[position:][:1]]
            found += [_kinds(module, arg) for arg in (*args[:1], *named)]
    return frozenset[str]().union(*found)


def _kinds(module: Module, node: ast.expr) -> Kinds:
    if isinstance(node, ast.Constant):
        return frozenset({NUMBER if is_number(node, node) else OTHER})
    if ArrayExpressions(module, block_of(module, node), frozenset()).is_array(node):
        return frozenset({ARRAY})
    return _Reader().kinds(module.with_definitions, node)


class _Reader:
    """Follows one value back to what it may be."""

    def __init__(self) -> None:
        # A value that is computed from itself is what its other values are.
        self._asked: set[ast.AST] = set()

    def kinds(self, module: Module, node: ast.expr, depth: int = 0) -> Kinds:
        """Returns what an expression may be."""
        if node in self._asked:
            return frozenset()
        if depth > _MOST_STEPS:
            return frozenset({OTHER})
        self._asked.add(node)
        block = block_of(module, node)
        if ArrayExpressions(module, block, frozenset()).is_array(node):
            return frozenset({ARRAY})

        def each(*parts: ast.expr) -> Kinds:
            return frozenset[str]().union(*(self.kinds(module, p, depth + 1) for p in parts))

        match node:
            case ast.BinOp(left=one, right=other):
                found = each(one, other)
                return frozenset({ARRAY}) if ARRAY in found else found
            case ast.UnaryOp(operand=inner) | ast.Starred(value=inner):
                return each(inner)
            case ast.IfExp(body=one, orelse=other):
                return each(one, other)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                return each(*parts)
            case ast.Dict(values=parts):
                return each(*parts)
            case ast.Name():
                found_names = module.facts.definitions.of_name(module, node)
                return self._defined(found_names, depth)
            case ast.Attribute() | ast.Subscript() if _is_setting(node):
                return frozenset({NUMBER})
            case ast.Attribute(attr=name) if not is_number(node, block):
                return self._defined(attribute_values(module, name), depth)
            case ast.Subscript(value=base) if not is_number(node, block):
                return each(base)
            case ast.Call():
                return self._called(module, node, depth)
        return frozenset({NUMBER if is_number(node, block) else OTHER})

    def _defined(self, definitions: Iterable[Definition], depth: int) -> Kinds:
        found: list[Kinds] = []
        for each in definitions:
            source, steps = each.source, each.steps
            if isinstance(each.node, ast.arg):
                found.append(self._parameter(each, each.node, depth))
                continue
            if steps and isinstance(steps[0], tuple) and isinstance(source, ast.Tuple):
                part = taken(tuple(source.elts), steps[0])
                source, steps = (part, steps[1:]) if isinstance(part, ast.expr) else (None, ())
            if steps[:1] == (EACH,) and isinstance(source, ast.Call):
                is_counted = leaf(source.func) == "range" or steps[1:] == ((0, 2),)
                is_counted = is_counted and leaf(source.func) in ("range", "enumerate")
                found.append(frozenset({NUMBER if is_counted else OTHER}))
            elif source is None:
                found.append(frozenset({OTHER}))
            elif not steps or isinstance(source, (ast.Tuple, ast.List)):
                found.append(self.kinds(each.module, source, depth + 1))
            else:
                calls = each.module.facts.callees.get(source, frozenset())
                is_result = bool(calls) and all(isinstance(fact, Mapped) for fact in calls)
                is_sum = isinstance(each.module.parent(each.node), ast.AugAssign)
                kinds = self.kinds(each.module, source, depth + 1) if is_sum else {OTHER}
                found.append(frozenset({ARRAY}) if is_result else frozenset(kinds))
        return frozenset[str]().union(*found) if found else frozenset({OTHER})

    def _parameter(self, definition: Definition, node: ast.arg, depth: int) -> Kinds:
        module = definition.module
        if node.annotation is not None and ast.unparse(node.annotation) in _NUMBERS:
            return frozenset({NUMBER})
        function = module.parent(module.parent(node))
        given = list(passed_values(module, function, node.arg))
        default = defaults(function.args).get(node.arg)  # type: ignore[attr-defined]
        given += [(module, default)] if default is not None else []
        found = [self.kinds(home, arg, depth + 1) for home, arg in given]
        return frozenset[str]().union(*found) if found else frozenset({OTHER})

    def _called(self, module: Module, node: ast.Call, depth: int) -> Kinds:
        callees = module.facts.callees.get(node, frozenset())
        if callees and all(isinstance(fact, Mapped) for fact in callees):
            return frozenset({ARRAY})
        if is_number(node, block_of(module, node)):
            return frozenset({NUMBER})
        called = module.facts.calls.get(node)
        names = called.names if called is not None else frozenset()
        if names & (known_names.TREE_MAP | _LIKE_FIRST):
            trees = node.args[1:] if names & known_names.TREE_MAP else node.args[:1]
            found = (self.kinds(module, tree, depth + 1) for tree in trees)
            return frozenset[str]().union(*found)
        functions = [
            fact.function if isinstance(fact, Bound) else fact
            for fact in callees
            if isinstance(fact, (Bound, Function))
        ]
        if functions and len(functions) == len(callees):
            returned = [
                self.kinds(each.module, value, depth + 1)
                for each in functions
                for value in _returned(each)
            ]
            return frozenset[str]().union(*returned) if returned else frozenset({OTHER})
        # What a schedule or another function computes from numbers is not committed to a device.
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        kinds = frozenset[str]().union(*(self.kinds(module, arg, depth + 1) for arg in given))
        return frozenset({NUMBER if given and kinds <= {NUMBER} else OTHER})


def _is_setting(node: ast.expr) -> bool:
    """Returns whether a value is read from an object of settings: ``self.config.optimizer.lr``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        if _SETTINGS.fullmatch(leaf(node)):
            return True
    return False


def _returned(function: Function) -> list[ast.expr]:
    if isinstance(function.node, ast.Lambda):
        return [function.node.body]
    parts = [part for part in ast.walk(function.node) if isinstance(part, ast.Return)]
    return [part.value for part in parts if part.value is not None]


def _is_tree(use: Use, position: int) -> bool:
    """Returns whether the mapped function takes parts of an argument, or applies it."""
    if use.function is None or not use.names or position >= len(use.names):
        return False
    home = use.function.function.module.with_definitions
    return _takes_parts(home, use.function.node, use.names[position], 3)


def _takes_parts(module: Module, function: ast.AST, name: str, depth: int) -> bool:
    """Returns whether a function, or one that it calls, uses a parameter as an array or tree."""

    def is_it(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == name

    for part in ast.walk(function):
        match part:
            case ast.Attribute(value=base) | ast.Subscript(value=base) if is_it(base):
                return True
            case ast.Assign(targets=[ast.Tuple()], value=base) if is_it(base):
                return True
            case ast.BinOp(op=ast.MatMult(), left=one, right=other) if is_it(one) or is_it(other):
                return True
            case ast.Call(args=args) if any(map(is_it, args)):
                called = module.facts.calls.get(part)
                names = called.names if called is not None else frozenset()
                if names & known_names.TREE_MAP or any("jax.random." in each for each in names):
                    return True
                if leaf(part.func) == "apply" and is_it(args[0]):
                    return True
                for fact in module.facts.callees.get(part, ()) if depth else ():
                    inner = fact.function if isinstance(fact, Bound) else fact
                    if isinstance(inner, Function):
                        skipped = int(isinstance(fact, Bound))
                        names_of = [each.arg for each in inner.node.args.args][skipped:]
                        given = [n for n, arg in zip(names_of, args, strict=False) if is_it(arg)]
                        if any(_takes_parts(inner.module, inner.node, n, depth - 1) for n in given):
                            return True
    return False
