"""Whether a function is mapped more than once, so that what it was compiled to must be kept.

``jax.pmap`` remembered by the function; ``jax.jit`` of a new function each time compiles each time.
"""

from __future__ import annotations

import ast
import weakref

from pmapx._src.analysis.definitions import LOOPS, bound
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import Exported, Function, Named
from pmapx._src.source import files


def may_be_remade(module: Module, site: Site, node: ast.AST) -> bool:
    """Returns whether a function that outlives the site is mapped there more than once."""
    if site.kind == "wrapper":
        around = module.functions_around(node)
        functions = [each for each in around if not isinstance(each, ast.Lambda)]
        if not functions:
            return True
        wrapper = functions[0]
        assert isinstance(wrapper, (ast.FunctionDef, ast.AsyncFunctionDef))
        uses = _uses(module.project).get(_called_by(module, wrapper), [])
        return any(_is_repeated(*use) for use in uses)
    if site.kind != "call" or not (
        _is_repeated(module, node) or _is_for_others(module, site, node)
    ):
        return False
    call: ast.AST = node
    while module.place(call) != site.place:
        call = module.parent(call)
    assert isinstance(call, ast.Call)
    function = call.args[0] if call.args else None
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    if site.is_called_at_once and root is not function and _is_own_object(module, node, root):
        # Methods of one object are equal.
        return True
    if not isinstance(root, ast.Name) or any(
        root.id in bound(part for part in ast.walk(around) if part is not around)
        for around in module.functions_around(node)
    ):
        return False
    held = module.env.find(root.id) or frozenset()
    lasting = (Function, Named, Exported) if root is function else (Named, Exported)
    return any(isinstance(fact, lasting) for fact in held)


def _is_own_object(module: Module, node: ast.AST, root: ast.expr | None) -> bool:
    """Returns whether a name is the ``self`` of the method around a node, no first one."""
    around = module.functions_around(node)
    methods = [each for each in around if isinstance(module.parent(each), ast.ClassDef)]
    if not methods or not isinstance(root, ast.Name):
        return False
    method = methods[0]
    arguments = method.args.args  # type: ignore[attr-defined]
    is_first = getattr(method, "name", "") in ("__init__", "__post_init__", "setup")
    return bool(arguments) and arguments[0].arg == root.id and not is_first


_REPEATING = (*LOOPS, ast.Lambda)
_Use = tuple[Module, ast.AST]
_USES: weakref.WeakKeyDictionary[Project, dict[str, list[_Use]]] = weakref.WeakKeyDictionary()


def _is_repeated(module: Module, node: ast.AST, inside: frozenset[ast.AST] = frozenset()) -> bool:
    """Returns whether a place may be reached twice in one run of the program."""
    while not isinstance(node, ast.Module):
        if isinstance(node, _REPEATING) or node in inside:
            return True
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = _called_by(module, node)
            uses = [
                use
                for use in _uses(module.project).get(name, [])
                if not _is_another(module, name, *use) and not files.is_test(use[0].path)
            ]
            # Files that use it once each are mostly different programs.
            is_used_again = len({other for other, _ in uses}) < len(uses)
            return is_used_again or any(_is_repeated(*use, inside | {node}) for use in uses)
        node = module.parent(node)
    return False


def _is_another(module: Module, name: str, other: Module, node: ast.AST) -> bool:
    """Returns whether a name is a function of its own file, such as ``main`` of another script."""
    held = other.env.find(name) if other is not module and isinstance(node, ast.Name) else None
    return bool(held) and all(isinstance(f, Function) and f.module is other for f in held or ())


def _is_for_others(module: Module, site: Site, node: ast.AST) -> bool:
    """Returns whether a map is made and called in a function that only others call, and often.

    A test is called by its name's pattern, and once.
    """
    return site.is_called_at_once and any(
        isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not each.name.lower().startswith("test")
        and not _uses(module.project).get(_called_by(module, each))
        for each in module.functions_around(node)
    )


def _called_by(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    parent = module.parent(function)
    is_first = function.name in ("__init__", "__post_init__", "setup")
    return parent.name if is_first and isinstance(parent, ast.ClassDef) else function.name


def _uses(project: Project) -> dict[str, list[_Use]]:
    """Returns where each name is used that may be a function's, in all files that were read."""
    if project not in _USES:
        found: dict[str, list[_Use]] = {}
        for module in project.modules.values():
            for node in module.nodes if module is not None else ():
                assert module is not None
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    found.setdefault(node.id, []).append((module, node))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    found.setdefault(node.func.attr, []).append((module, node))
        _USES[project] = found
    return _USES[project]
