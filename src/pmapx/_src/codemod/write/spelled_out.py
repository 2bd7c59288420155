"""Kept partials and wrappers of pmap, spelled out at their uses before the program is migrated.

``over_devices = functools.partial(jax.pmap, axis_name="i")`` goes, and ``over_devices(f)`` becomes
``jax.pmap(f, axis_name="i")``, if all uses are calls and decorators of the files that are read. So
does a function that only hands its arguments on to pmap. Options in a dict that is written out,
``jax.pmap(f, **options)``, go to the call.
"""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

from pmapx._src.analysis import syntax
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.call_tokens import is_at_its_place, is_literal
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source.rewriting import added_imports, import_edits
from pmapx._src.source.rewriting.edits import Edit, between, ends, lines_of, replacing

_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.With)
_AXES = ("in_axes", "out_axes", "static_broadcasted_argnums")


class _NotSpelled(Exception):
    """Some use cannot be spelled out."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Alias:
    """A name of a module that stands for pmap with options."""

    module: Module
    statement: ast.Assign | ast.FunctionDef
    name: str
    options: tuple[tuple[str, ast.expr], ...]


def spelled_out(
    modules: Sequence[Module],
    others: Callable[[bytes], list[Module | None]],
    *,
    is_once: bool = False,
) -> dict[str, list[Edit]]:
    """Returns the edits of each file; ``others`` reads the further files that have a word.

    With ``is_once``, only what is used once is spelled out.
    """
    found: dict[str, list[Edit]] = {}
    for module in modules:
        for alias in _aliases(module):
            is_local = alias.statement not in module.source.tree.body
            further = [] if is_local else others(alias.name.encode())
            read = [module] if is_local else [*modules, *(each for each in further if each)]
            try:
                edits = dict(_edits(alias, read, 1 if is_once else None))
            except _NotSpelled:
                continue
            if None in further or edits.keys() & found.keys():
                continue
            for path, several in edits.items():
                found.setdefault(path, []).extend(several)
    for module in modules:
        own = list(_unpacked(module))
        if own and module.path not in found and not module.source.cells:
            found[module.path] = own
    return found


def _unpacked(module: Module) -> Iterator[Edit]:
    """Yields the edits of calls of pmap that unpack a dict of options, which is written once."""
    for statement in (node for node in module.nodes if isinstance(node, ast.Assign)):
        options = _options(module, statement.value)
        target = statement.targets[0]
        if not options or not isinstance(target, ast.Name):
            continue
        named = [n for n in module.nodes if isinstance(n, ast.Name) and n.id == target.id]
        used = [module.parent(node) for node in named if node is not target]
        calls = [module.parent(each) for each in used]
        is_plain = all(
            isinstance(each, ast.keyword)
            and each.arg is None
            and isinstance(call, ast.Call)
            and _is_pmap(module, call.func)
            for each, call in zip(used, calls, strict=True)
        )
        is_alone = len(module.source.line(statement.lineno).strip().partition(";")[2]) == 0
        is_free = len(getattr(module.parent(statement), "body", ())) > 1
        if used and is_plain and is_alone and is_free and len(statement.targets) == 1:
            for each in used:
                yield replacing(module.place(each), options)
            last = (statement.end_lineno or statement.lineno) + 1
            yield between((statement.lineno, 0), (last, 0))


def _options(module: Module, node: ast.expr) -> str:
    """Returns the options in a dict as those of a call, if all of them are literals."""
    pairs: list[tuple[object, ast.expr]] = []
    if isinstance(node, ast.Dict):
        keys = [getattr(key, "value", None) for key in node.keys]
        pairs = list(zip(keys, node.values, strict=True))
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    is_known = all(isinstance(k, str) and is_literal(module.text(v)) for k, v in pairs)
    return ", ".join(f"{k}={module.text(v)}" for k, v in pairs) if is_known else ""


def _is_pmap(module: Module, node: ast.AST) -> bool:
    reference = module.facts.references.get(node)
    return reference is not None and reference.name == "jax.pmap" and reference.is_certain


def _aliases(module: Module) -> Iterator[_Alias]:
    """Yields partials of pmap, and functions at the top level that do nothing but call it."""
    if module.source.cells or os.path.basename(module.path) == "__init__.py":
        return
    inner = (part for part in module.nodes if _is_kept_in_a_function(module, part))
    for statement in (*module.source.tree.body, *inner):
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(args=[reference], keywords=keywords, func=partial),
            ) if _is_pmap(module, reference) and ast.unparse(partial).endswith("partial"):
                if all(keyword.arg for keyword in keywords):
                    options = tuple((str(each.arg), each.value) for each in keywords)
                    yield _Alias(module, statement, name, options)
            case ast.FunctionDef(name=name, decorator_list=[]):
                given = _handed_on(module, statement)
                if given is not None:
                    yield _Alias(module, statement, name, given)


def _is_kept_in_a_function(module: Module, node: ast.AST) -> bool:
    """Returns whether a statement of a function's is all that binds a name, and others follow."""
    above = module.parent(node) if isinstance(node, ast.Assign) else None
    around = module.functions_around(node) if isinstance(above, _BLOCKS) else []
    if not around or len(above.body) < 2 or not isinstance(node.targets[0], ast.Name):  # type: ignore[union-attr,attr-defined]
        return False
    name = node.targets[0].id  # type: ignore[attr-defined]
    uses, own = name_uses(module), {*ast.walk(around[0])}
    return len(uses.bound.get(name, [])) == 1 and own.issuperset(uses.names.get(name, []))


def _handed_on(module: Module, node: ast.FunctionDef) -> tuple[tuple[str, ast.expr], ...] | None:
    """Returns the options that a function adds to those that it hands on to pmap."""
    body = syntax.body(node)
    arguments = node.args
    if len(body) != 1 or not isinstance(body[0], ast.Return) or arguments.kwarg is None:
        return None
    call = body[0].value
    if not isinstance(call, ast.Call) or not _is_pmap(module, call.func):
        return None
    names = [each.arg for each in arguments.args]
    if arguments.vararg or arguments.kwonlyargs or arguments.posonlyargs or not names:
        return None
    given = [("", arg) for arg in call.args] + [(k.arg or "**", k.value) for k in call.keywords]
    if ast.unparse(given[0][1]) != names[0] or names[1:] not in ([], ["axis_name"]):
        return None
    if given[-1][0] != "**" or ast.unparse(given[-1][1]) != arguments.kwarg.arg:
        return None
    options = {name or "axis_name": value for name, value in given[1:-1]}
    if len(given) > 4 or set(options) - {"axis_name"}:
        return None
    if names[1:]:
        is_own = ast.unparse(options.get("axis_name", ast.Name("")))
        if is_own != "axis_name" or len(arguments.defaults) != 1:
            return None
        options["axis_name"] = arguments.defaults[0]
    return tuple(options.items())


def _edits(
    alias: _Alias, modules: Sequence[Module], most: int | None
) -> Iterator[tuple[str, list[Edit]]]:
    count = 0
    for module in modules:
        imported = _imported_as(alias, module)
        editor = Editor(module.source)
        used = [
            node for node in ast.walk(module.source.tree) if _is_use(alias, module, node, imported)
        ]
        count += len(used)
        for node in used:
            _spell(alias, module, node, editor)
        text = " ".join(edit.text for edit in editor.edits)
        missing = [
            f"import {name}"
            for name in ("functools", "jax")
            if f"{name}." in text and module.env.find(name) is None
        ]
        changed = lines_of(editor.edits)
        editor.edits += added_imports.added(module.source, missing, changed=changed)
        if module is alias.module:
            last = alias.statement.end_lineno or alias.statement.lineno
            first = alias.statement.lineno
            while first > 1 and not module.source.line(first - 1).strip():
                first -= 1
            if not isinstance(alias.statement, ast.FunctionDef):
                first = alias.statement.lineno
            editor.edits.append(between((first, 0), (last + 1, 0)))
            editor.edits += _without_functools(alias)
        elif imported is not None:
            node, name = imported
            editor.edits += import_edits.without(module.source, node, [name], module.source.tree)
        if editor.edits:
            yield module.path, editor.edits
    if not count or (most is not None and count > most):
        raise _NotSpelled


def _without_functools(alias: _Alias) -> Iterator[Edit]:
    """Yields the edit that drops the import of functools, if the alias alone used it."""
    tree = alias.module.source.tree
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "functools"]
    own = {id(part) for part in ast.walk(alias.statement)}
    if uses and all(id(each) in own for each in uses):
        for node in tree.body:
            if isinstance(node, ast.Import) and ast.unparse(node) == "import functools":
                yield between((node.lineno, 0), (node.lineno + 1, 0))


def _imported_as(alias: _Alias, module: Module) -> tuple[ast.ImportFrom, ast.alias] | None:
    stem = os.path.basename(alias.module.path).removesuffix(".py")
    for node in ast.walk(module.source.tree):
        for each in node.names if isinstance(node, ast.ImportFrom) else ():
            assert isinstance(node, ast.ImportFrom)
            if each.name == alias.name and (node.module or "").rpartition(".")[2] == stem:
                if each.asname is not None or node not in module.source.tree.body:
                    raise _NotSpelled
                return node, each
            if each.name == alias.name and node.module != "jax":
                raise _NotSpelled
    return None


def _is_use(alias: _Alias, module: Module, node: ast.AST, imported: object) -> bool:
    """Returns whether a node is the alias; raises if it may be."""
    stem = os.path.basename(alias.module.path).removesuffix(".py")
    if isinstance(node, ast.Name) and node.id == alias.name:
        is_definition = module is alias.module and not isinstance(node.ctx, ast.Load)
        if module is not alias.module and imported is None:
            return False
        if not isinstance(node.ctx, ast.Load):
            if is_definition and module.parent(node) is alias.statement:
                return False
            raise _NotSpelled
        return True
    if isinstance(node, ast.Attribute) and node.attr == alias.name:
        if _is_pmap(module, node) or module.facts.references.get(node) is not None:
            return False
        if ast.unparse(node.value).rpartition(".")[2] == stem:
            return True
        raise _NotSpelled
    if isinstance(node, ast.Constant) and node.value == alias.name:
        raise _NotSpelled
    if (
        isinstance(node, ast.arg)
        and node.arg == alias.name
        and (imported or module is alias.module)
    ):
        raise _NotSpelled
    return False


def _spell(alias: _Alias, module: Module, node: ast.AST, editor: Editor) -> None:
    """Writes pmap with its options in the place of the alias."""
    parent = module.parent(node)
    assert isinstance(node, (ast.Name, ast.Attribute))
    if not is_at_its_place(module.source, node):
        raise _NotSpelled
    options = {name: _text(alias, module, node, value, editor) for name, value in alias.options}
    place = module.place(node)
    is_decorator = node in getattr(parent, "decorator_list", ())
    if is_decorator:
        partial = "partial" if module.env.find("partial") else "functools.partial"
        added = "".join(f", {name}={text}" for name, text in options.items())
        editor.replace(place, f"{partial}(jax.pmap{added})")
        return
    is_partial = isinstance(parent, ast.Call) and node in parent.args[:1]
    if not isinstance(parent, ast.Call) or not (parent.func is node or is_partial):
        raise _NotSpelled
    if is_partial and not ast.unparse(parent.func).endswith("partial"):
        raise _NotSpelled
    is_starred = any(isinstance(arg, ast.Starred) for arg in parent.args)
    is_unpacked = is_starred or any(keyword.arg is None for keyword in parent.keywords)
    if len(parent.args) != 1 or is_unpacked:
        raise _NotSpelled
    for keyword in parent.keywords:
        if keyword.arg in _AXES and not is_literal(ast.unparse(keyword.value)):
            # That use would need a function with the options of pmap.
            raise _NotSpelled
    given = {keyword.arg for keyword in parent.keywords}
    added = "".join(f", {name}={text}" for name, text in options.items() if name not in given)
    editor.replace(place, "jax.pmap")
    end = ends(module.place(parent.args[0]))
    if is_partial:
        editor.replace(place, f"jax.pmap{added}")
    else:
        editor.insert(*end, added)


def _text(alias: _Alias, module: Module, node: ast.AST, value: ast.expr, editor: Editor) -> str:
    """Returns what an option is called in another module."""
    if isinstance(value, ast.Constant):
        text = value.value
        return editor.quoted(text) if isinstance(text, str) else ast.unparse(value)
    if is_literal(ast.unparse(value)):
        return ast.unparse(value)
    if not isinstance(value, ast.Name):
        raise _NotSpelled
    if module is alias.module:
        return value.id
    if isinstance(node, ast.Attribute):
        return f"{ast.unparse(node.value)}.{value.id}"
    if isinstance(module.env.find(value.id), frozenset):
        return value.id
    for statement in alias.module.source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=value.id)], value=ast.Constant(value=str(text))):
                return editor.quoted(text)
    raise _NotSpelled
