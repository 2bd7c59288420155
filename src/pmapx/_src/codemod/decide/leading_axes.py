"""Whether a pmap that is kept, ``pmap = functools.partial(jax.pmap, "i")``, needs few options.

Or a function of the project that hands its arguments on to it.
"""

from __future__ import annotations

import ast
import copy
from typing import NamedTuple

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.codemod.decide import specs
from pmapx._src.codemod.decide.assigned_values import assigned_values, block_of
from pmapx._src.codemod.decide.map_calls import map_calls

_PARTIAL = ("functools.partial", "partial")
_OPTIONS = frozenset({"axis_name", "in_axes", "out_axes", "donate_argnums"})


class _Taken(NamedTuple):
    """What the short function takes: options, and the classes of trees of axes, None for any."""

    options: frozenset[str]
    trees: set[str] | None


def maps_leading_axes(
    module: Module, site: Site, *, in_processes: bool = False, has_static: bool = False
) -> bool:
    """Tells whether what a site maps has leading device axes or none.

    Every use of the name of a partial must be a call whose options can be read. The function for
    several processes also takes keywords, and trees of any class; with ``has_static``, static
    arguments as well.
    """
    modules = [each for each in module.project.modules.values() if each is not None]
    static = {"static_broadcasted_argnums"} if has_static else set()
    taken = _Taken(_OPTIONS | static, None if in_processes else _named_tuples(modules))
    if site.kind in ("call", "decorator"):
        is_few = all(_is_few(*each, taken) for each in site.options)
        return is_few and not site.has_unpacked_options
    wrapper = _wrapper_of(module, site)
    name = _name_of(module, site) if wrapper is None else wrapper.name
    if wrapper is None:
        is_few = all(_is_few(*each, taken) for each in site.options)
        if site.kind != "partial" or not is_few or not name:
            return False
    made = {
        making.node
        for each in modules
        for making in each.facts.makings.values()
        if making.site in site.places and module.place(making.node) != site.place
    }
    if not in_processes and any(call.keywords for _, call in map_calls(module, site)):
        return False
    uses = [(each, node) for each in modules for node in each.nodes if _is_named(each, node, name)]
    for each, node in uses:
        # It is called, or is a decorator, or is kept again with more options.
        call = node if node in made else each.parent(node)
        is_again = isinstance(call, ast.Call) and ast.unparse(call.func) in _PARTIAL
        if wrapper is not None and node in getattr(call, "decorator_list", ()):
            call = node
        is_made = call in made or (
            wrapper is not None and node in (call, getattr(call, "func", None))
        )
        if not (is_made or is_again) or not _has_few_options(each, call, taken):
            return False
    return bool(uses)


def _wrapper_of(module: Module, site: Site) -> ast.FunctionDef | None:
    """Returns the function of the file that hands its arguments on: ``def pmap(f, **options)``."""
    for node in module.source.tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        *first, last = node.body
        call = last.value if isinstance(last, ast.Return) else None
        is_it = call is not None and module.place(call) == site.place
        if is_it and len(first) == (ast.get_docstring(node) is not None):
            return node if _hands_on(node, call) else None
    return None


def _hands_on(node: ast.FunctionDef, call: ast.expr | None) -> bool:
    """Tells whether a call has a function's parameters, each under its own name."""
    if not isinstance(call, ast.Call) or node.args.vararg or node.args.kwarg is None:
        return False
    names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    given = [ast.unparse(each) for each in call.args]
    named = {each.arg or "**": ast.unparse(each.value) for each in call.keywords}
    if named.pop("**", "") != node.args.kwarg.arg:
        return False
    is_same = all(name == text for name, text in named.items())
    is_few = given[1:] in ([], ["axis_name"])
    return is_same and is_few and sorted([*given, *named]) == sorted(names)


def _named_tuples(modules: list[Module]) -> set[str]:
    """Returns the classes of the project whose values can be axes, and keys of a cache."""
    return {
        node.name
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)
    }


def _has_few_options(module: Module, node: ast.AST, taken: _Taken) -> bool:
    """Tells whether a call maps a function with options that the short function has."""
    if not isinstance(node, ast.Call):
        # A bare decorator.
        return isinstance(node, (ast.Name, ast.Attribute))
    is_plain = len(node.args) <= 2 and not any(isinstance(a, ast.Starred) for a in node.args)
    return is_plain and all(
        each.arg is not None and _is_few(each.arg, _text(module, each.value), taken)
        for each in node.keywords
    )


def _text(module: Module, option: ast.expr) -> str:
    """Returns the text of an option, with what its names are assigned in the same function."""
    block = block_of(module, option)
    given = {}
    for part in ast.walk(option):
        if isinstance(part, ast.Name):
            values = list(assigned_values(block, part.id))
            if len(values) == 1 and isinstance(values[0], ast.Call):
                given[part.id] = values[0]
    return ast.unparse(_Spelled(given).visit(copy.deepcopy(option)))


class _Spelled(ast.NodeTransformer):
    """Puts values in the place of names."""

    def __init__(self, values: dict[str, ast.Call]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.values.get(node.id, node)


def _is_few(name: str, text: str, taken: _Taken) -> bool:
    if name not in taken.options or (name == "axis_name" and text == "None"):
        return False
    if name not in ("in_axes", "out_axes"):
        return True
    axes = specs.literal(text)
    tree = ast.parse(text.strip() if axes is ... else repr(axes), mode="eval").body
    return _is_leading(tree, taken.trees)


def _is_leading(axes: ast.expr, trees: set[str] | None) -> bool:
    """Tells whether axes are 0 and None; ``trees`` are classes that may hold them, None for any."""
    match axes:
        case ast.Constant(value=value):
            return value is None or (type(value) is int and value == 0)
        case ast.Tuple(elts=parts):
            return all(_is_leading(part, trees) for part in parts)
        case ast.Call(func=ast.Name() | ast.Attribute(), args=args, keywords=keywords):
            parts = [*args, *(keyword.value for keyword in keywords)]
            name = ast.unparse(axes.func).rpartition(".")[2]
            is_class = name[:1].isupper() if trees is None else name in trees
            return is_class and all(_is_leading(part, trees) for part in parts)
    return False


def _name_of(module: Module, site: Site) -> str:
    """Returns the name that a file keeps the partial by."""
    for statement in module.source.tree.body:
        is_it = isinstance(statement, ast.Assign) and module.place(statement.value) == site.place
        if is_it and isinstance(statement.targets[0], ast.Name):  # type: ignore[attr-defined]
            return statement.targets[0].id  # type: ignore[attr-defined]
    return ""


def _is_named(module: Module, node: ast.AST, name: str) -> bool:
    """Tells whether a node reads the name, or an attribute of that name that is not JAX's."""
    if isinstance(node, ast.Name):
        is_read = node.id == name and isinstance(node.ctx, ast.Load)
        return is_read and not any(
            name in {part.arg for part in ast.walk(each.args) if isinstance(part, ast.arg)}  # type: ignore[attr-defined]
            for each in module.functions_around(node)
        )
    is_attribute = isinstance(node, ast.Attribute) and node.attr == name
    return is_attribute and ast.unparse(node.value) != "jax"  # type: ignore[attr-defined]
