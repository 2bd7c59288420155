"""Arguments that name the mapped axis for a library's collective, as batch norm's ``axis_name``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.decisions import COLLECTIVES, Decision
from pmapx._src.source.rewriting.edits import between, ends, starts

_KEYWORD = re.compile(r"(\w+_)?axis(_name)?")
_MAPS = ("pmap", "vmap", "xmap", "shard_map", "jit", "make_mesh")


def calls(module: Module, axes: Sequence[str]) -> Iterator[tuple[ast.Call, int]]:
    """Yields calls of a file that name an axis for a library, and the keyword's number."""
    for node in ast.walk(module.source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        names = {name, *(ast.unparse(arg).rpartition(".")[2] for arg in node.args[:1])}
        if names & {*COLLECTIVES, *_MAPS}:
            continue
        for number, keyword in enumerate(node.keywords):
            value = keyword.value
            is_axis = isinstance(value, ast.Constant) and value.value in axes
            if is_axis and keyword.arg is not None and _KEYWORD.fullmatch(keyword.arg):
                yield node, number


def refuse_unknown(made: Sequence[Decision], modules: Sequence[Module]) -> None:
    """Refuses maps with a collective of a library that no argument in the source asks for."""
    kept = [each for each in made if each.libraries and each.reasons]
    for each in made:
        if each.reasons or not each.libraries:
            continue
        file, line, library = sorted(each.libraries)[0]
        where = f"{file.rpartition('/')[2]}:{line}"
        if not any(True for module in modules for _ in calls(module, [each.axis])):
            each.refuse(
                f"a collective of {library.rpartition('/')[2]} at {where} has its axis name from "
                "elsewhere than an argument in the source"
            )
        elif kept:
            other = kept[0].name
            each.refuse(f"{other} also reaches the library's collective at {where}")


def edit(module: Module, axes: Sequence[str], editor: Editor) -> None:
    """Drops these arguments."""
    for node, number in list(calls(module, axes)):
        given = arguments(editor.source, node)
        at = len(node.args) + number
        place = given[at][1]
        keyword = editor.source.place(node.keywords[number])
        if at + 1 < len(given):
            following = editor.source.place((node.keywords)[number + 1])
            editor.edits.append(between(starts(keyword), starts(following)))
        elif at:
            editor.edits.append(between(ends(given[at - 1][1]), ends(place)))
        else:
            editor.edits.append(between(starts(keyword), ends(place)))
