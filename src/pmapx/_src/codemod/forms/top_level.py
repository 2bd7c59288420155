"""A map that is made again and again becomes one jitted function at the top level of the file.

``jax.pmap`` remembered by the function what it had compiled; ``jax.jit`` does so for a function
that is made once. Where the mapped function is not the same at the top level, it is an argument::

    jax.pmap(self.insert)(buffer, x)

    over_devices = jax.jit(lambda function, *args: ..., static_argnums=0)
    over_devices(self.insert, buffer, x)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from pmapx._src.analysis.definitions import LOOPS, bound
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Exported, Function, Named
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.text.name_uses import name_uses
from pmapx._src.source.location import Place
from pmapx._src.source.rewriting.edits import ends

_LASTING = (Function, Named, Exported)
FUNCTION = "function"


def is_argument(use: Use) -> bool:
    """Returns whether the mapped function is not known to be the same at the top level."""
    call = use.expression
    function = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if function is None or isinstance(function, ast.Call):
        return True
    parts = list(ast.walk(function))
    if any(
        isinstance(part, ast.arguments) and (part.defaults or part.kw_defaults) for part in parts
    ):
        return True
    own = {part.arg for part in parts if isinstance(part, ast.arg)}
    names = {part.id for part in parts if isinstance(part, ast.Name)} - own
    around = use.module.functions_around(use.node)
    local = {name for each in around for name in bound(ast.walk(each))} - own
    local |= {part.arg for each in around for part in ast.walk(each) if isinstance(part, ast.arg)}
    held = [use.module.env.find(name) or frozenset() for name in names]
    is_lasting = all(facts and all(isinstance(f, _LASTING) for f in facts) for facts in held)
    return (
        bool(names & (local - own))
        or not is_lasting
        or any(_is_bound_again(use.module, name) for name in names)
    )


def _is_bound_again(module: Module, name: str) -> bool:
    """Returns whether a name of the file may be a new function later, to be traced again.

    ``for k in sizes: def f(x): return k * x`` makes one in each iteration.
    """
    bound = name_uses(module).bound.get(name, ())
    if all(isinstance(node, ast.alias) for node in bound):
        # ``import jax`` and ``import jax.profiler`` bind the same module.
        return False
    is_global = any(isinstance(n, ast.Global) and name in n.names for n in module.nodes)
    found = [node for node in bound if not module.functions_around(node)]
    return is_global or len(found) > 1 or any(_is_in_loop(module, node) for node in found)


def _is_in_loop(module: Module, node: ast.AST) -> bool:
    while not isinstance(node, (ast.Module, *LOOPS)):
        node = module.parent(node)
    return isinstance(node, LOOPS)


def called_here(use: Use) -> ast.Call | None:
    """Returns the call of a map where it is made, which can be given the function as well."""
    call = use.module.parent(use.expression)
    if not isinstance(call, ast.Call) or call.func is not use.expression or call.keywords:
        return None
    end = use.site.place
    is_next = use.module.source.line(end.end_line)[end.end_column :].startswith("(")
    return call if call.args and is_next else None


def give_function(use: Use, call: ast.Call, name: str, function: str, editor: Editor) -> None:
    """Makes the function the first argument of a call, below the first line if that is too long.

    Only the parentheses are edited, since the arguments have edits of their own.
    """
    callee, place = use.site.place, use.module.place(call)
    indent = editor.indent(place.line)
    head, end = f"({function}, ", ")"
    line = editor.source.line(place.line)
    added = len(name) + len(head) - 1 - len(editor.source.segment(callee))
    if call.args[0].lineno > callee.end_line:
        head = f"(\n{editor.indent(call.args[0].lineno)}{function},"
    elif place.line == place.end_line and len(line) + added > editor.width:
        head = f"(\n{indent}{editor.hang}{function}, "
        end = ")" if editor.is_filled else f"\n{indent})"
    opening = Place(place.path, *ends(callee), callee.end_line, callee.end_column + 1)
    closing = Place(place.path, place.end_line, place.end_column - 1, *ends(place))
    editor.replace(opening, head)
    editor.replace(closing, end)


def options_beside_function(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options for a function whose first argument is the mapped one."""
    moved = dict(options)
    for name in ("static_broadcasted_argnums", "donate_argnums"):
        given = ast.literal_eval(options.get(name, "()"))
        several = (given,) if isinstance(given, int) else tuple(given)
        positions = tuple(i if i < 0 else i + 1 for i in several)
        if name == "static_broadcasted_argnums":
            positions = (0, *positions)
        if positions:
            moved[name] = str(positions[0] if len(positions) == 1 else positions)
    return moved


def name_of(use: Use, function: str, editor: Editor) -> str:
    """Returns a free name for the jitted function, that of its own function if it has one."""
    words = None if is_argument(use) else re.fullmatch(r"[\w.]*?(\w+)", function)
    return free_name(f"sharded_{words[1].strip('_')}" if words else "over_devices", use, editor)


def free_name(base: str, use: Use, editor: Editor, elsewhere: frozenset[str] = frozenset()) -> str:
    """Returns a name that nothing in the file has, with a number if it needs one.

    ``elsewhere`` are new names that only other functions have.
    """
    uses = name_uses(use.module)
    taken = {*uses.bound, *uses.names, *(editor.new_names - elsewhere)}
    names = (base, *(f"{base}{i}" for i in range(2, 1000)))
    return next(name for name in names if name not in taken)


def insert(use: Use, name: str, text: str, editor: Editor) -> str:
    """Assigns a text to a name above the statement of the top level that has the use.

    Returns the name, which is another if the same is there already.
    """
    top = use.module.top_statement(use.expression)
    line = editor.line_above(top)
    is_block = isinstance(top, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    for edit in editor.edits:
        is_there = (edit.line, edit.column) == (line, 0) and edit.text.partition(" = ")[2]
        if is_there and is_there.rstrip() == text:
            return edit.text.partition(" = ")[0]
    editor.new_names.add(name)
    editor.insert(line, 0, f"{name} = {text}\n" + ("\n\n" if is_block else ""))
    return name
