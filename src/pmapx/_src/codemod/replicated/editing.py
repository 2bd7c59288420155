"""Edits that drop the device axis: ``None`` in the axes of pmaps, and removed calls."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.decide import axis_names, copies, host_arrays
from pmapx._src.codemod.decide.array_twins import (
    is_computed_with,
    is_kept,
    mapped_function,
    may_have_twins,
    with_parts,
)
from pmapx._src.codemod.decide.assigned_values import is_used_after
from pmapx._src.codemod.decide.fields import Fields
from pmapx._src.codemod.decide.global_state import REPLICATED
from pmapx._src.codemod.forms.use import jax_numpy
from pmapx._src.codemod.replicated import keywords, one_liners, wrappers
from pmapx._src.codemod.replicated.decisions import Decisions
from pmapx._src.codemod.replicated.groups import SINGLE, Change, Position
from pmapx._src.codemod.replicated.maps import Map, Maps
from pmapx._src.codemod.replicated.wrappers import Wrapper
from pmapx._src.codemod.text import call_tokens, outer_calls
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.added_imports import added
from pmapx._src.source.rewriting.edits import (
    Edit,
    between,
    ends,
    keeping,
    lines_of,
    replacing,
    starts,
)

HELPER = REPLICATED
TEXT = '''\
def on_every_device(tree, devices=None, axis_name="devices"):
    """Replicates every leaf on the devices, as jax.shard_map expects for P() in in_specs."""
    mesh = jax.sharding.Mesh(jax.local_devices() if devices is None else devices, (axis_name,))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    # Copies, so that a step that donates its state does not delete the arrays of the caller.
    return jax.device_put(jax.tree.map(jax.numpy.array, tree), replicated)
'''
# What these make of an array holds none of its memory.
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.Tuple, ast.List)


def edits(
    maps: Maps,
    decisions: Decisions,
    merged: Sequence[Change] = (),
    *,
    has_helper_function: bool = True,
) -> dict[str, list[Edit]]:
    """Returns the changes to each file, by its path; ``merged`` are those of merged batches.

    Without the helper function, what writes the maps puts ``jax.device_put`` in the place of calls.
    """
    found: dict[Module, list[Edit]] = {}
    placing: set[Module] = set()
    lacking: dict[Wrapper, set[str]] = {}
    ordered: dict[ast.Call, tuple[Module, list[ast.keyword]]] = {}
    is_donated = {change.node: donated for change, donated in decisions.changes}
    changes = [change for change, _ in decisions.changes]
    # What is computed to be replicated again stays global.
    kept = [change.kept for change in changes if change.kind == "place"]
    replicated = {part for tree in kept if tree is not None for part in ast.walk(tree)}
    for change in one_liners.in_makers(changes, maps.modules):
        is_kept = is_donated.get(change.node, False)
        in_processes = maps.in_processes(change.module) and change.node not in replicated
        made = _changed(change, is_kept, has_helper_function, in_processes)
        of_file = found.setdefault(change.module, [])
        # Two values that one statement takes stacked have one comment.
        of_file += [edit for edit in made if change.kind != "stack" or edit not in of_file]
        if change.kind in ("place", "unstack"):
            placing.add(change.module)
    for change in merged:
        found.setdefault(change.module, []).extend(change.edits)
    for key in sorted({*decisions.arguments, *decisions.results}):
        each = maps.by_key(key)
        taken, given = decisions.arguments.get(key, set()), decisions.results.get(key, set())
        texts = _options(each, taken, given, decisions.fields)
        of_file = found.setdefault(each.module, [])
        axes = _axes_of(each, taken, given, decisions.fields)
        if key in decisions.assigned and any(isinstance(axis, set) for axis in axes):
            specs = _specs(each, decisions)
            of_file += [specs] if specs not in of_file else []
        for module, call in ((each.module, each.node), *each.again):
            assert isinstance(call, ast.Call)
            found.setdefault(module, []).extend(_with_options(module, call, texts))
            if each.donated and taken and not keywords.donated_after(each):
                found[module] += _without_option(module, call, "donate_argnums")
        if each.wrapper is not None:
            lacking.setdefault(each.wrapper, set()).update(filter(each.wrapper.lacks, texts))
        if taken:
            ordered.update(each.by_keyword)
    for call, (module, wanted) in ordered.items():
        found.setdefault(module, []).extend(keywords.edits(module, call, wanted))
    for wrapper, options in lacking.items():
        found.setdefault(wrapper.module, []).extend(_with_parameters(wrapper, options))
    for module, made in found.items():
        needs_helper = module in placing and has_helper_function and not has_helper(module)
        needs_jax = needs_helper or any("jax." in edit.text for edit in made)
        made += added(
            module.source,
            ["import jax"] if needs_jax and module.env.find("jax") is None else [],
            changed=lines_of(made),
            functions=[_helper(module)] if needs_helper else [],
        )
    return {os.path.normpath(module.path): made for module, made in found.items()}


def _changed(change: Change, is_donated: bool, has_copies: bool, in_processes: bool) -> list[Edit]:
    module, node = change.module, change.node
    place = module.place(node)
    if change.kind == "index":
        assert isinstance(node, ast.Subscript)
        own = ".addressable_data(0)" if in_processes and is_computed_with(module, node) else ""
        return _without_index(module, node, is_donated, own)
    if change.kind == "stack":
        return _stacked_again(change, in_processes)
    if change.kind == "unstack":
        comment = (
            f"The shards that {change.around} takes here were equal in a run; this is the first."
        )
        return _around(change, f"{HELPER}(jax.tree.map(lambda x: x[0], ", "))", comment)
    assert change.kept is not None
    kept = module.place(change.kept)
    text, above = "", module.parent(node)
    is_other = isinstance(above, ast.Attribute) and above.attr not in (
        *(change.fields.names if change.fields is not None else ()), "replace", "_replace",
    )  # fmt: skip
    outer = module.parent(above)
    is_replaced = (
        change.fields is not None
        and isinstance(outer, ast.Call)
        and outer.func is above
        and {*change.fields.names} <= {keyword.arg for keyword in outer.keywords}
    )
    if change.fields is not None and not is_replaced and (change.kind == "place" or not is_other):
        text = change.fields.with_each("", _called_with(change), module.text(change.kept))
        length = place.column + len(module.text(change.kept)) + len(text)
        if change.kind == "place" or length > Editor(module.source).width:
            # What is placed becomes longer than a line.
            text = _on_next_line(module, node, text)
    if change.kind == "place":
        before, after = f"{HELPER}(", ""
        is_shared = _is_used_again(module, node, change.kept) or may_have_twins(module, change.kept)
        # jnp.stack made a copy, and jax.device_put may share the memory of an array of NumPy.
        is_copied = not copies.names_called(module, node) & copies.MAKERS
        changes = is_copied and host_arrays.changes_later(module, change.kept)
        if changes or (is_donated and not has_copies and is_shared):
            # A step that reuses the memory of its state must not take it from another array.
            before, after = f"{HELPER}(jax.tree.map({jax_numpy(module)}.copy, ", ")"
        around = copies.conversion(module, node, change.kept)
        if around is not None and around[0]:
            start = around[0].replace(".asarray(", ".array(") if changes else around[0]
            before, after = f"{HELPER}({start}", around[1]
        if change.devices is not None:
            after += f", {module.text(change.devices)}"
        after += f"){text}"
        return [*keeping(place, kept, before, after)]
    before, after = ("(", ")") if _needs_brackets(module, change.kept) else ("", "")
    if change.around:
        before, after = f"{change.around}(", ")"
    else:
        is_local = in_processes and change.fields is None and is_computed_with(module, node)
        copied = (
            f"{jax_numpy(module)}.copy" if is_donated and is_kept(module, node, change.kept) else ""
        )
        own = f"{copied}(x.addressable_data(0))" if copied else "x.addressable_data(0)"
        function = f"lambda x: {own}" if is_local else copied
        if function:
            before, after = f"jax.tree.map({function}, ", ")"
            editor, line = Editor(module.source), module.source.line(place.line)
            added = len(before + module.text(change.kept) + after) - len(module.text(node))
            if is_local and len(line) + added > editor.width:
                indent = editor.indent(place.line)
                before = f"jax.tree.map(\n{indent}{editor.hang}{function}, "
                after = ")" if editor.is_filled else f"\n{indent})"
        taken = with_parts(module, node)
        mapped = mapped_function(module, module.parent(taken)) if is_local else None
        if mapped is not None and not copied:
            edit = replacing(module.place(mapped), f"lambda x: {module.text(mapped)}({own})")
            return [edit, *keeping(place, kept, "", "")]
        if is_local and taken is not node:
            # Of the parts alone that are computed with.
            end = ends(module.place(taken))
            return [*keeping(place, kept, before, ""), between(end, end, after)]
    return [*keeping(place, kept, before, after + text)]


def _on_next_line(module: Module, node: ast.expr, text: str) -> str:
    """Returns ``.replace(...)`` behind a node with its arguments below it."""
    editor = Editor(module.source)
    indent = editor.indent(module.place(node).end_line)
    end = ")" if editor.is_filled else f"\n{indent})"
    return text.replace("(", f"(\n{indent}{editor.hang}", 1).removesuffix(")") + end


def _called_with(change: Change) -> Callable[[str], str]:
    """Returns what writes a call as it was, with a field in the place of the state."""
    module, place = change.module, change.module.place(change.node)
    assert change.kept is not None
    kept, text = change.module.place(change.kept), module.source.segment(place)
    before = module.source.segment(Place(place.path, *starts(place), *starts(kept)))
    after = module.source.segment(Place(place.path, *ends(kept), *ends(place)))
    assert len(before) + len(after) < len(text)
    return lambda field: f"{before}{field}{after}"


def _specs(each: Map, decisions: Decisions) -> Edit:
    """Writes the specs of a state with fields that differ, where that is seen before its map."""
    module, statement = each.module, decisions.assigned[each.key]
    fields = next(f for p, f in decisions.fields.items() if p.site == each.key)
    editor, place = Editor(module.source), module.place(statement)
    quote = '"' if module.source.text.count('"') > module.source.text.count("'") else "'"
    parts = [f"{name}=jax.P({quote}{each.axis}{quote})" for name in fields.names]
    head = f"{fields.specs} = jax.tree.map(lambda _: jax.P(), {fields.state}).{fields.method}"
    indent = editor.indent(place.line)
    text = editor.folded_call(head, parts, indent, len(indent))
    is_assigned = not each.made_at.is_inside(place)
    line = place.end_line + 1 if is_assigned else editor.line_above(statement)
    return between((line, 0), (line, 0), f"{indent}{text}\n")


def _is_used_again(module: Module, node: ast.AST, kept: ast.expr) -> bool:
    """Tells whether the program uses what is put on the devices after that."""
    if isinstance(kept, (ast.Call, ast.Constant)):
        return False
    if isinstance(kept, (ast.Dict, ast.Tuple, ast.List)):
        parts = kept.values if isinstance(kept, ast.Dict) else kept.elts
        return any(_is_used_again(module, node, part) for part in parts)
    if not isinstance(kept, ast.Name):
        return True
    statement = module.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    # ``params, opt = replicate((params, opt))`` binds both names anew.
    parts = [part for each in targets for part in getattr(each, "elts", (each,))]
    if any(isinstance(each, ast.Name) and each.id == kept.id for each in parts):
        return False
    return is_used_after(module, node, kept.id)


def _stacked_again(change: Change, in_processes: bool) -> list[Edit]:
    """Gives a value its axis back, with a comment that names what takes it so."""
    module, place = change.module, change.module.place(change.node)
    # Of a global array a process has its own copy, which needs no other process.
    is_global = in_processes and not copies.is_on_host(module, change.node)
    copy = "x.addressable_data(0)" if is_global else "x"
    stack = f"lambda x: {jax_numpy(module)}.stack([{copy}] * jax.local_device_count())"
    behind = len(module.source.line(place.end_line)) - place.end_column
    editor, value = Editor(module.source), module.source.segment(place)
    call = editor.folded_call(
        "jax.tree.map", [stack, value], editor.indent(place.line), place.column + behind
    )
    before, _, after = call.rpartition(value)
    if change.fields is not None:
        fields = change.fields.with_each("", str, value)
        last = len(call.rpartition("\n")[2]) + (0 if "\n" in call else place.column)
        is_fitting = last + len(fields + editor.rest_of_line(place)) <= editor.width
        after += fields if is_fitting else _on_next_line(module, change.node, fields)
    comment = f"With the leading device axis that {change.around} expects."
    if re.match("dump|save|write", change.around.rpartition(".")[2]):
        comment = "Saved with the leading device axis, as before."
    return _around(change, before, after, comment)


def _around(change: Change, before: str, after: str, comment: str) -> list[Edit]:
    """Writes text around a node, and a comment above its statement."""
    module, place = change.module, change.module.place(change.node)
    found = [
        between(starts(place), starts(place), before),
        between(ends(place), ends(place), after),
    ]
    statement = module.statement(change.node)
    line, column = statement.lineno, statement.col_offset
    indent = module.source.line(line)[:column]
    if not indent.strip():
        found.append(between((line, 0), (line, 0), f"{indent}# {comment}\n"))
    return found


def _without_index(
    module: Module, node: ast.Subscript, is_donated: bool, instead: str
) -> list[Edit]:
    """Takes the index off ``x[0]``."""
    place, value = module.place(node), module.place(node.value)
    line, column = place.end_line, place.end_column
    # Between the value and its index may be brackets that close around it.
    while True:
        text = module.source.line(line)[:column]
        found = text.rfind("[")
        if found >= 0 and (line, found) >= ends(value):
            break
        line, column = line - 1, len(module.source.line(line - 1))
    index = between((line, found), ends(place), instead)
    if is_donated and is_kept(module, node, node.value):
        copy = between(starts(place), starts(place), f"{jax_numpy(module)}.copy(")
        return [copy, between((line, found), ends(place), f"{instead})")]
    return [index]


def _needs_brackets(module: Module, node: ast.expr) -> bool:
    place = module.place(node)
    return place.line != place.end_line or not isinstance(node, _SIMPLE)


def _axes_of(
    each: Map, taken: set[int], given: set[int], fields: Mapping[Position, Fields]
) -> list[object]:
    """Returns the axes of what is replicated: None, or fields that are not."""
    positions = [
        Position.of(each.made_at, index, is_output=kind)
        for kind, several in ((False, taken), (True, given))
        for index in several
    ]
    return [fields[position].axes if position in fields else None for position in positions]


def _options(
    each: Map, taken: set[int], given: set[int], fields: Mapping[Position, Fields]
) -> dict[str, str]:
    """Returns ``in_axes`` and ``out_axes`` with None for what is replicated."""
    call = each.node
    assert isinstance(call, ast.Call)
    texts: dict[str, str] = {}
    in_axes = dict(zip(taken, _axes_of(each, taken, set(), fields), strict=True))
    out_axes = dict(zip(given, _axes_of(each, set(), given, fields), strict=True))
    if taken:
        count = next(iter(each.counts))
        axes = [
            in_axes.get(index) if index in taken or index in each.static else each.in_axis(index)
            for index in range(count)
        ]
        texts["in_axes"] = repr(tuple(axes))
        given_already = {keyword.arg for keyword in call.keywords}
        if (
            axes.count(None) == len(axes)
            and not each.has_keywords
            and "axis_size" not in given_already
        ):
            # No argument is left that has the size of the mapped axis.
            devices = next((k.value for k in call.keywords if k.arg == "devices"), None)
            texts["axis_size"] = (
                "jax.device_count()" if devices is None else f"len({each.module.text(devices)})"
            )
        donated = keywords.donated_after(each)
        if donated and donated != each.donated:
            texts["donate_argnums"] = repr(tuple(sorted(donated)))
    if SINGLE in given:
        texts["out_axes"] = repr(out_axes[SINGLE])
    elif given:
        results = range(each.arity or 0)
        axes = [out_axes[index] if index in given else each.out_axis(index) for index in results]
        texts["out_axes"] = "None" if axes.count(None) == len(axes) else repr(tuple(axes))
    return texts


def _with_options(module: Module, call: ast.Call, texts: Mapping[str, str]) -> list[Edit]:
    """Gives a call options, in the place of those that it has."""
    found = []
    new = dict(texts)
    for keyword in call.keywords:
        if keyword.arg in new:
            found.append(replacing(module.place(keyword.value), new.pop(keyword.arg)))
    if new:
        end = ends(call_tokens.arguments(module.source, call)[-1][1])
        added = "".join(f", {name}={text}" for name, text in new.items())
        broken = outer_calls.broken(module, call, len(added))
        found += [each for each in broken if (each.line, each.column) != end]
        below = "".join(each.text for each in broken if (each.line, each.column) == end)
        found.append(between(end, end, added + below))
    return found


def _without_option(module: Module, call: ast.Call, name: str) -> list[Edit]:
    """Takes an option off a call, with the comments above it."""
    given = call_tokens.arguments(module.source, call)
    return [
        between(ends(before), ends(place))
        for (_, before), (option, place) in itertools.pairwise(given)
        if option == name
    ]


def _with_parameters(wrapper: Wrapper, options: set[str]) -> list[Edit]:
    """Lets the users of a wrapper give it options, which it hands on."""
    if not options:
        return []
    module = wrapper.module
    arguments = wrapper.definition.args
    parts = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, *arguments.defaults,
             *arguments.kw_defaults]  # fmt: skip
    end = max(ends(module.place(part)) for part in parts if part is not None)
    names = [name for name in wrappers.DEFAULTS if name in options]
    new = "".join(f", {name}={wrappers.DEFAULTS[name]}" for name in names)
    handed = _with_options(module, wrapper.call, {name: name for name in names})
    return [between(end, end, new), *handed]


def has_helper(module: Module) -> bool:
    """Tells whether a file has the function that puts a tree on all devices."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == HELPER
        for node in module.source.tree.body
    )


def _helper(module: Module) -> str:
    return axis_names.with_name(TEXT, axis_names.of_maps(module))
