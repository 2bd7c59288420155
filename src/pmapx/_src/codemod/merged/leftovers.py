"""Functions of the program that only split or merge a batch: they and their calls are removed."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Sequence

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.module import Module
from pmapx._src.codemod.merged import splits
from pmapx._src.codemod.merged.batch_flow import BatchFlow
from pmapx._src.codemod.replicated.groups import Change
from pmapx._src.codemod.replicated.mapped_functions import functions
from pmapx._src.source.rewriting import import_edits
from pmapx._src.source.rewriting.edits import between, keeping

# A comment above what goes that is about it.
_OF_SPLIT = re.compile(r"\s*#.*(?:shard|split|reshap|device)", re.IGNORECASE)


def without_leftovers(flow: BatchFlow, changes: Sequence[Change]) -> list[Change]:
    """Returns the changes, without functions that would return their argument as it is."""
    found: dict[ast.AST, Change] = {change.node: change for change in changes}
    removed: dict[ast.AST, Change] = {}
    while True:
        for change in list(found.values()):
            function = _left(change, removed)
            uses = None if function is None else _uses(flow, function)
            if function is not None and uses:
                removed[function] = _removed(change.module, function)
                found |= {use.node: use for use in uses}
                found.pop(change.node)
                break
        else:
            break
    inside = {part for function in removed for part in ast.walk(function)}
    kept = [change for node, change in found.items() if node not in inside]
    inner = {part for f in removed for part in ast.walk(f) if part is not f}
    kept += [change for function, change in removed.items() if function not in inner]
    kept = [_without_assignment(_without_comprehension(change)) for change in kept]
    return [_without_comment(change) for change in kept]


def _without_comprehension(change: Change) -> Change:
    """Writes ``[x, y]`` where ``[part for part in (x, y)]`` would be left."""
    module, comprehension = change.module, change.module.parent(change.node)
    if not isinstance(comprehension, (ast.ListComp, ast.GeneratorExp)) or not _is_bare(change):
        return change
    first, *others = comprehension.generators
    listed, around = first.iter, module.parent(comprehension)
    is_each = isinstance(first.target, ast.Name) and first.target.id == change.kept.id  # type: ignore[union-attr]
    targets = around.targets if isinstance(around, ast.Assign) else []
    is_unpacked = len(targets) == 1 and isinstance(targets[0], ast.Tuple)
    is_plain = (
        is_each and comprehension.elt is change.node and not (others or first.ifs or first.is_async)
    )
    is_plain &= is_unpacked or isinstance(comprehension, ast.ListComp)
    place, inside = module.place(comprehension), module.place(listed)
    has_comment = "#" in "".join(module.source.lines[place.line - 1 : place.end_line])
    if not is_plain or has_comment or not isinstance(listed, (ast.Tuple, ast.List)):
        return change
    brackets = ("", "") if is_unpacked or isinstance(listed, ast.List) else ("[", "]")
    if any(brackets) or (is_unpacked and inside.line == inside.end_line):
        column, end_column = inside.column + 1, inside.end_column - 1
        inside = dataclasses.replace(inside, column=column, end_column=end_column)
    edits = keeping(place, inside, *brackets)
    return dataclasses.replace(change, node=comprehension, kept=listed, edits=edits)


def _without_assignment(change: Change) -> Change:
    """Deletes ``batch = shard(batch)``, where ``batch = batch`` would be left."""
    module, assigned = change.module, change.module.parent(change.node)
    if not isinstance(assigned, ast.Assign) or len(assigned.targets) > 1 or change.kept is None:
        return change
    held = change.kept.elts if isinstance(change.kept, ast.Tuple) else [change.kept]
    is_named = all(isinstance(each, ast.Name) for each in held)
    is_same = ast.unparse(assigned.targets[0]) == ast.unparse(change.kept)
    if not is_named or not is_same or any(edit.text for edit in change.edits):
        return change
    place, block = module.place(assigned), module.parent(assigned)
    before = module.source.line(place.line)[: place.column]
    behind = module.source.line(place.end_line)[place.end_column :]
    several = [getattr(block, field, []) for field in ("body", "orelse", "finalbody")]
    is_alone = not any(assigned in part and len(part) > 1 for part in several)
    if before.strip() or behind.strip() or is_alone:
        return change
    edit = between((place.line, 0), (place.end_line + 1, 0))
    return dataclasses.replace(change, kept=None, edits=(edit,))


def _without_comment(change: Change) -> Change:
    """Deletes the comment above a statement if it is about a removed split or merge."""
    module = change.module
    first = last = module.statement(change.node).lineno
    while _OF_SPLIT.match(module.source.line(first - 1)):
        first -= 1
    is_gone = not any(edit.text.strip("[]") for edit in change.edits)
    if first == last or not is_gone:
        return change
    head, *rest = sorted(change.edits)
    if (head.line, head.column) == (last, 0):
        # The statement goes as well.
        return dataclasses.replace(change, edits=(dataclasses.replace(head, line=first), *rest))
    return dataclasses.replace(change, edits=(between((first, 0), (last, 0)), head, *rest))


def _is_bare(change: Change) -> bool:
    """Returns whether nothing is left of a call but the name of its argument."""
    return isinstance(change.kept, ast.Name) and not any(edit.text for edit in change.edits)


def _left(change: Change, removed: dict[ast.AST, Change]) -> ast.FunctionDef | None:
    """Returns the function that only does ``return x`` after a change."""
    module, node = change.module, change.node
    returned = module.parent(node)
    function = module.parent(returned)
    if not isinstance(returned, ast.Return) or not isinstance(function, ast.FunctionDef):
        return None
    arguments = function.args
    others = [*arguments.posonlyargs, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = [each.arg for each in arguments.args]
    if not _is_bare(change) or any(others) or arguments.defaults or function.decorator_list:
        return None
    around = module.parent(function)
    # The base of a class may call its methods.
    is_method = isinstance(around, ast.ClassDef) and not (around.bases or around.keywords)
    is_same = names[is_method:] == [change.kept.id]  # type: ignore[union-attr]
    gone = set(ast.walk(node)) - {change.kept}
    gone |= {part for each in removed for part in ast.walk(each)}
    body = syntax.body(function)
    is_empty = all(part in removed or _is_count_for(module, part, gone) for part in body[:-1])
    is_nested = is_method or isinstance(around, (ast.Module, ast.FunctionDef))
    is_only = len(getattr(around, "body", [])) > 1
    has_comment = module.source.line(function.lineno - 1).lstrip().startswith("#")
    is_plain = is_same and is_empty and is_nested and is_only and not has_comment
    return function if is_plain and body[-1] is returned else None


def _is_count_for(module: Module, node: ast.stmt, gone: set[ast.AST]) -> bool:
    """Returns whether a statement names the number of devices, for what is gone alone."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    results = module.facts.results.get(node.value, frozenset())
    scope = module.functions_around(node)[0]
    return (
        isinstance(target, ast.Name)
        and bool(results)
        and results <= known_names.DEVICE_COUNTS
        and all(
            part in gone
            for part in ast.walk(scope)
            if isinstance(part, ast.Name)
            and part.id == target.id
            and isinstance(part.ctx, ast.Load)
        )
    )


def _uses(flow: BatchFlow, function: ast.FunctionDef) -> list[Change] | None:
    """Returns the calls of a function, each become its argument; None if it has other uses."""
    found = []
    importing: set[Module] = set()
    is_method = function.args.args[1:] != []
    for module in flow.modules:
        for node in _named(module, function.name):
            parent = module.parent(node)
            if isinstance(node, ast.alias):
                importing.add(module)
                is_top = isinstance(module.parent(parent), ast.Module)
                # An import stays if another file has one of the same name.
                is_kept = len(importing) > 1 or module.path.endswith("__init__.py")
                if node.asname or not is_top or is_kept:
                    return None
                continue
            if isinstance(node, ast.Attribute) and node in module.facts.references:
                # Of a library, by the same name.
                continue
            if isinstance(node, ast.FunctionDef):
                if is_method and node is not function and isinstance(parent, ast.ClassDef):
                    # It may be what a subclass has in its place.
                    return None
                continue
            is_made = any(isinstance(part, ast.Call) for part in ast.walk(node))
            if is_made or isinstance(node, ast.Constant) or not isinstance(parent, ast.Call):
                return None
            called = {each.node for each, _ in functions(module.facts.callees.get(parent, ()))}  # type: ignore[arg-type]
            is_call = parent.func is node and called == {function}
            is_applied = parent in {call for _, call in flow.applying(function)}
            count = 1 if is_call else 2
            is_plain = len(parent.args) == count and not parent.keywords
            kept = parent.args[-1] if is_plain and (is_call or is_applied) else None
            if kept is None or isinstance(kept, ast.Starred) or flow.is_traced(module, parent):
                return None
            only = flow.iterated if flow.is_map(module, parent) else splits.only
            edits = only(module, parent, kept).edits
            found.append(Change(module, "merge", parent, kept, edits=edits))
    return found


def _named(module: Module, name: str) -> Iterator[ast.AST]:
    """Yields what has the name of a function, or may."""
    for node in module.nodes:
        held = [getattr(node, field, "") for field in ("id", "attr", "value")]
        is_named = isinstance(node, (ast.alias, ast.FunctionDef)) and node.name == name
        if name in held or is_named:
            yield node


def _removed(module: Module, function: ast.FunctionDef) -> Change:
    """Deletes a function with the blank lines after it, or above the last of a class."""
    first, last = function.lineno, function.end_lineno or function.lineno
    lines = module.source.lines
    around = module.parent(function)
    if isinstance(around, ast.ClassDef) and around.body[-1] is function:
        while not lines[first - 2].strip():
            first -= 1
    else:
        while last < len(lines) and not lines[last].strip():
            last += 1
    edit = import_edits.without_lines(module.source, first, last)
    return Change(module, "merge", function, edits=(edit,))  # type: ignore[arg-type]
