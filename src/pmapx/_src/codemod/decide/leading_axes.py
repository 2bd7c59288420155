"""Whether a pmap that is kept, ``pmap = functools.partial(jax.pmap, "i")``, needs few options."""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.codemod.decide.map_calls import map_calls

_PARTIAL = ("functools.partial", "partial")
_OPTIONS = frozenset({"axis_name", "in_axes", "out_axes", "donate_argnums"})


def maps_leading_axes(module: Module, site: Site) -> bool:
    """Tells whether all that is mapped through a partial has leading device axes or none.

    Every use of its name must be a call whose options can be read.
    """
    modules = [each for each in module.project.modules.values() if each is not None]
    trees = _named_tuples(modules)
    if site.kind != "partial" or not all(_is_few(*each, trees) for each in site.options):
        return False
    made = {
        making.node
        for each in modules
        for making in each.facts.makings.values()
        if making.site in site.places and module.place(making.node) != site.whole
    }
    name = _name_of(module, site)
    if not name or any(call.keywords for _, call in map_calls(module, site)):
        return False
    uses = [(each, node) for each in modules for node in each.nodes if _is_named(node, name)]
    for each, node in uses:
        # It is called, or is a decorator, or is kept again with more options.
        call = node if node in made else each.parent(node)
        is_again = isinstance(call, ast.Call) and ast.unparse(call.func) in _PARTIAL
        if not (call in made or is_again) or not _has_few_options(call, trees):
            return False
    return bool(uses)


def _named_tuples(modules: list[Module]) -> set[str]:
    """Returns the classes of the project whose values can be axes, and keys of a cache."""
    return {
        node.name
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)
    }


def _has_few_options(node: ast.AST, trees: set[str]) -> bool:
    """Tells whether a call maps a function with options that the short function has."""
    if not isinstance(node, ast.Call):
        # A bare decorator.
        return isinstance(node, (ast.Name, ast.Attribute))
    is_plain = len(node.args) <= 2 and not any(isinstance(a, ast.Starred) for a in node.args)
    return is_plain and all(
        each.arg is not None and _is_few(each.arg, ast.unparse(each.value), trees)
        for each in node.keywords
    )


def _is_few(name: str, text: str, trees: set[str]) -> bool:
    if name not in _OPTIONS or (name == "axis_name" and text == "None"):
        return False
    return name not in ("in_axes", "out_axes") or _is_leading(
        ast.parse(text.strip(), mode="eval").body, trees
    )


def _is_leading(axes: ast.expr, trees: set[str]) -> bool:
    match axes:
        case ast.Constant(value=value):
            return value is None or (type(value) is int and value == 0)
        case ast.Tuple(elts=parts):
            return all(_is_leading(part, trees) for part in parts)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            parts = [*args, *(keyword.value for keyword in keywords)]
            return name in trees and all(_is_leading(part, trees) for part in parts)
    return False


def _name_of(module: Module, site: Site) -> str:
    """Returns the name that a file keeps the partial by."""
    for statement in module.source.tree.body:
        is_it = isinstance(statement, ast.Assign) and module.place(statement.value) == site.whole
        if is_it and isinstance(statement.targets[0], ast.Name):  # type: ignore[attr-defined]
            return statement.targets[0].id  # type: ignore[attr-defined]
    return ""


def _is_named(node: ast.AST, name: str) -> bool:
    """Tells whether a node reads the name, or an attribute of that name that is not JAX's."""
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Load)
    is_attribute = isinstance(node, ast.Attribute) and node.attr == name
    return is_attribute and ast.unparse(node.value) != "jax"  # type: ignore[attr-defined]
