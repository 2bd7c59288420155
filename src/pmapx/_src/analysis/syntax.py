"""Python's trees: walked faster than the ``ast`` module does, and names in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes right below a node, as ``ast.iter_child_nodes`` does."""
    for part in node.__dict__.values():
        if type(part) is list:
            for child in part:
                if isinstance(child, ast.AST):
                    yield child
        elif isinstance(part, ast.AST):
            yield part


def walk(node: ast.AST) -> list[ast.AST]:
    """Returns a node and all below it, in the order of ``ast.walk``.

    >>> [type(part).__name__ for part in walk(ast.parse("a.b"))]
    ['Module', 'Expr', 'Attribute', 'Name', 'Load', 'Load']
    """
    found = [node]
    for each in found:
        for part in each.__dict__.values():
            if type(part) is list:
                for child in part:
                    if isinstance(child, ast.AST):
                        found.append(child)
            elif isinstance(part, ast.AST):
                found.append(part)
    return found


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields all statements of a module, and the handlers and cases that hold some."""
    todo: list[ast.AST] = [*tree.body]
    while todo:
        statement = todo.pop()
        yield statement
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(statement, block, ())


def returns(function: ast.AST) -> Iterator[ast.Return]:
    """Yields the return statements of a function, without those of functions inside it."""
    for part in children(function):
        if isinstance(part, ast.Return):
            yield part
        elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            yield from returns(part)


def defaults(signature: ast.arguments) -> dict[str, ast.expr | None]:
    """Returns the parameters of a function by name, each with its default if it has one.

    >>> list(defaults(ast.parse("lambda a, *b, c, **d: a", mode="eval").body.args))
    ['a', 'c']
    """
    # Asked for at every call.
    known = signature.__dict__
    if "defaults_by_name" not in known:
        names = positional(signature)
        several = [*[None] * (len(names) - len(signature.defaults)), *signature.defaults]
        names += [each.arg for each in signature.kwonlyargs]
        found = zip(names, [*several, *signature.kw_defaults], strict=True)
        known["defaults_by_name"] = dict(found)
    by_name: dict[str, ast.expr | None] = known["defaults_by_name"]
    return by_name


def positional(signature: ast.arguments) -> list[str]:
    """Returns the names of the parameters that arguments are for by position."""
    return [each.arg for each in (*signature.posonlyargs, *signature.args)]


def body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Returns the statements of a function without its docstring."""
    return function.body[int(ast.get_docstring(function) is not None) :]


def result(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.expr | None:
    """Returns what a function returns that does nothing else."""
    if isinstance(function, ast.Lambda):
        return function.body
    statements = body(function)
    only = statements[0] if len(statements) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


def leaf(node: ast.AST) -> str:
    """Returns the last part of a name such as ``jax.pmap``, "" of other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def given_arguments(
    node: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, skipped: int
) -> list[tuple[str | None, ast.expr]]:
    """Returns the arguments of a call, each with the parameter that it is for, if it has one."""
    arguments = function.args
    names = positional(arguments)[skipped:]
    every = {*names, *(each.arg for each in arguments.kwonlyargs)}
    given: list[tuple[str | None, ast.expr]] = [
        (names[index] if index < len(names) else None, arg) for index, arg in enumerate(node.args)
    ]
    return given + [(k.arg if k.arg in every else None, k.value) for k in node.keywords]
