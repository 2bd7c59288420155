"""Whether a mapped function may take or return numbers of Python's, which have no axes."""

from __future__ import annotations

import ast

from pmapx._src.analysis.syntax import defaults
from pmapx._src.codemod.decide.assigned_values import assigned_values, block_of
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms.mapped_function import MappedFunction
from pmapx._src.codemod.forms.use import Use

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
            given = (*assigned_values(function, name), *_listed(function, name))
            return name in _counted(function) or any(map(inside, given))
    return False


def _listed(function: ast.AST, name: str) -> list[ast.expr]:
    """Returns what a loop over a written tuple or list gives to a name."""
    return [
        item
        for loop in ast.walk(function)
        if isinstance(loop, ast.For) and getattr(loop.target, "id", "") == name
        for item in getattr(loop.iter, "elts", ())
    ]


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


def may_be_number(use: Use, position: int) -> bool:
    """Returns whether a call gives a number of Python's, which needs no conversion."""
    return any(_numbers_given(use, position))


def is_number_unknown(use: Use, position: int) -> bool:
    """Returns whether a replicated argument may be a number in some calls, and not in others."""
    if position in use.known_layout.static or use.known_layout.in_axes_of(position) is not None:
        return False
    if position in use.known_layout.merged or position in use.replicated:
        return False
    given = _numbers_given(use, position)
    return any(given) > all(given) or (not given and not _is_tree(use, position))


def _is_tree(use: Use, position: int) -> bool:
    """Returns whether the mapped function takes parts of an argument, or applies it."""
    names, body = use.names or [], use.function.node if use.function is not None else ast.Pass()
    for part in ast.walk(body):
        base = part.value if isinstance(part, (ast.Attribute, ast.Subscript)) else None
        if isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "apply" and part.args:
            base = part.args[0]
        if isinstance(base, ast.Name) and base.id == names[position]:
            return True
    return False


def _numbers_given(use: Use, position: int) -> list[bool]:
    """Returns of each call whether it gives a number of Python's for an argument."""
    found = []
    for module, call in map_calls(use.module, use.site):
        args = call.args[position - use.is_method :]
        named = [k.value for k in call.keywords if k.arg in (use.names or [])[position:][:1]]
        block = block_of(module, call)
        found += [is_number(arg, block) for arg in (*args[:1], *named)]
    return found
