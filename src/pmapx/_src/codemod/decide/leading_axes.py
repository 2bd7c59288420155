"""Whether a pmap that is kept, ``pmap = functools.partial(jax.pmap, "i")``, needs few options."""

from __future__ import annotations

import ast

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.sites import Site
from pmapx._src.codemod.decide.map_calls import map_calls

_OPTIONS = frozenset({"axis_name", "in_axes", "out_axes", "donate_argnums"})


def maps_leading_axes(module: Module, site: Site) -> bool:
    """Tells whether all that is mapped through a partial has leading device axes or none.

    Every use of its name must be a call whose options can be read.
    """
    if site.kind != "partial" or not all(_is_few(name, text) for name, text in site.options):
        return False
    modules = [each for each in module.project.modules.values() if each is not None]
    makings = [
        making
        for each in modules
        for making in each.facts.makings.values()
        if making.site in site.places and module.place(making.node) != site.whole
    ]
    if not makings or not all(_has_few_options(making.node) for making in makings):
        return False
    if any(call.keywords for _, call in map_calls(module, site)):
        return False
    made = {making.node for making in makings}
    name = _name_of(module, site)
    return bool(name) and all(
        each.parent(node) in made or node in made
        for each in modules
        for node in each.nodes
        if _is_named(node, name)
    )


def _has_few_options(node: ast.AST) -> bool:
    """Tells whether a call maps a function with options that the short function has."""
    if not isinstance(node, ast.Call):
        # A bare decorator.
        return isinstance(node, (ast.Name, ast.Attribute))
    is_plain = len(node.args) <= 2 and not any(isinstance(a, ast.Starred) for a in node.args)
    return is_plain and all(
        each.arg is not None and _is_few(each.arg, ast.unparse(each.value))
        for each in node.keywords
    )


def _is_few(name: str, text: str) -> bool:
    if name not in _OPTIONS or (name == "axis_name" and text == "None"):
        return False
    if name not in ("in_axes", "out_axes"):
        return True
    try:
        return _is_leading(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return False


def _is_leading(axes: object) -> bool:
    if isinstance(axes, tuple):
        return all(map(_is_leading, axes))
    return axes is None or (type(axes) is int and axes == 0)


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
