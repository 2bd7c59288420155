"""Whether a mapped function may return numbers of Python's, which have no axes to add to."""

from __future__ import annotations

import ast

from pmapx._src.analysis.syntax import defaults
from pmapx._src.codemod.decide.assigned_values import assigned_values
from pmapx._src.codemod.forms.mapped_function import MappedFunction

# Of arrays, and of numpy, jax.numpy and math.
_NUMBERS = frozenset({"size", "ndim", "shape", "inf", "nan", "pi", "e", "tau"})


def may_return_numbers(mapped: MappedFunction | None) -> bool:
    """Returns whether a result may be a number of Python's, which has no axes to add to."""
    if mapped is None:
        return True
    node = mapped.node
    values = [node.body] if isinstance(node, ast.Lambda) else [r.value for r in mapped.returns]
    return any(is_number(value, node) for value in values if value is not None)


def is_number(node: ast.expr, function: ast.AST, depth: int = 0) -> bool:
    """Returns whether an expression may be a number of Python's, or hold one."""

    def inside(part: ast.expr) -> bool:
        return is_number(part, function, depth + 1)

    if depth > 12:
        return False
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float, complex))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(map(inside, parts))
        case ast.Dict(values=parts):
            # An attribute among metrics may be a setting, such as a loss scale.
            return any(isinstance(part, ast.Attribute) or inside(part) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return inside(one) or inside(other)
        case ast.BinOp(left=one, right=other):
            return inside(one) and inside(other)
        case ast.Attribute(attr=attribute):
            return attribute in _NUMBERS
        case ast.UnaryOp(operand=inner):
            return inside(inner)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=ast.Name(id="len" | "int" | "float")):
            return True
        case ast.Call(func=ast.Name(id="min" | "max" | "abs" | "round"), args=args):
            return all(map(inside, args))
        case ast.Call(func=ast.Attribute(attr="psum" | "pmean"), args=[first, *_]):
            return inside(first)
        case ast.Call(keywords=keywords, func=ast.Name(id="dict")):
            return any(
                isinstance(keyword.value, ast.Attribute) or inside(keyword.value)
                for keyword in keywords
            )
        case ast.Name(id=name):
            return name in _counted(function) or any(map(inside, assigned_values(function, name)))
    return False


def _counted(function: ast.AST) -> set[str]:
    """Returns the names that a function counts with, or that are numbers by default."""
    loops = [part for part in ast.walk(function) if isinstance(part, ast.For)]
    found = {
        part.id
        for loop in loops
        if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) in ("range", "enumerate")
        for part in (getattr(loop.target, "elts", None) or [loop.target])[:1]
        if isinstance(part, ast.Name)
    }
    is_function = isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    known = defaults(function.args) if is_function else {}  # type: ignore[attr-defined]
    return found | {
        name
        for name, default in known.items()
        if isinstance(default, ast.Constant) and type(default.value) in (int, float)
    }
