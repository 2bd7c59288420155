"""A small function above the statement of a site, where a lambda would be hard to read.

``jax.shard_map(lambda params, batch: (lambda a, b: (a, b[None]))(*f(params, batch[0])), ...)``
becomes ``jax.shard_map(sharded_f, ...)`` below::

    def sharded_f(params, batch):
        params, loss = f(params, batch[0])
        return params, loss[None]
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence

from pmapx._src.analysis.definitions import LOOPS
from pmapx._src.analysis.syntax import positional
from pmapx._src.codemod.decide.map_calls import map_calls
from pmapx._src.codemod.forms import shard_body, top_level
from pmapx._src.codemod.forms.body_edits import lines_taken
from pmapx._src.codemod.forms.shard_body import put
from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.call_tokens import needs_parentheses
from pmapx._src.codemod.text.editor import Editor

# A lambda of more lines is hard to read; those that only close brackets do not count.
MOST_LINES = 3
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)
# Its name, its device axis, and whether it is one array.
_Argument = tuple[str, object, bool]
_TRANSFORMS = frozenset({"partial", "vmap", "jit", "checkpoint", "remat"})


def instead_of(text: str, use: Use, function: str, editor: Editor) -> str:
    """Writes a function that does what a lambda does, and returns its name.

    ``text`` is the lambda around the mapped function, and ``function`` the text of that one.
    Returns nothing if the lambda is as good, or has to stay.
    """
    if use.is_made_again or use.known_layout.static or shard_body.is_edited(use):
        return ""
    if not shard_body.converts(use) or not _is_hard_to_read(use, text):
        return ""
    is_own = _own_lambda(use, function) is not None
    # The names of a lambda mean what they did.
    is_early = not is_own and shard_body.is_read_early(use, function)
    statement = _statement(use, is_early=is_early)
    node = ast.parse(f"({function})", mode="eval").body
    if statement is None or (needs_parentheses(node) and not is_own):
        return ""
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
        return ""
    called = function
    if is_early:
        called = function if isinstance(node, ast.Name) else top_level.FUNCTION
        if "\n" in function or called in (use.names or ()):
            return ""
    elsewhere = _names_elsewhere(use, editor)
    name = top_level.free_name(f"sharded_{_base(node, statement)}", use, editor, elsewhere)
    indent = editor.indent(statement.lineno)
    default = [f"{called}={function}"] if is_early else []
    # Parameters on lines of their own stand deeper than the body, unless a line closes them.
    is_apart = not editor.is_filled or editor.hang != editor.step
    above_body = indent if is_apart else indent + editor.step
    texts = []
    for parameters, lines in _bodies(use, called, editor, indent + editor.step):
        given = [*parameters, *default]
        head = editor.folded_call(f"def {name}", given, above_body, len(f"{indent}:"))
        body = "".join(f"{indent}{editor.step}{line}\n" for line in lines)
        texts.append(f"{indent}{head}:\n{body}")
    _insert(use, statement, min(texts, key=lambda text: text.count("\n")), editor)
    editor.new_names.add(name)
    return name


def _is_hard_to_read(use: Use, text: str) -> bool:
    """Returns whether a lambda has many lines, or applies another one at once."""
    parts = ast.walk(ast.parse(f"({text})"))
    if any(isinstance(part, ast.Call) and isinstance(part.func, ast.Lambda) for part in parts):
        return True
    is_own = use.function is not None and isinstance(use.function.node, ast.Lambda)
    if is_own or shard_body.out_axes(use) is None:
        # One call, or the function that is mapped.
        return False
    lines = [line for line in text.splitlines() if line.strip(" \t)]},")]
    # Several names say more than *args.
    has_names = text.startswith("lambda *args") and len(_names(use) or ()) > 1
    return len(lines) > MOST_LINES - has_names


def _own_lambda(use: Use, function: str) -> ast.Lambda | None:
    """Returns the lambda that is mapped, if its arguments are all plain."""
    own = use.function.node if use.function is not None else None
    if not isinstance(own, ast.Lambda) or not re.match(r"\(*\s*lambda\b", function):
        return None
    args = own.args
    is_plain = not (args.vararg or args.kwarg or args.kwonlyargs or args.defaults)
    is_here = isinstance(use.expression, ast.Call) and own in use.expression.args[:1]
    names = positional(args)
    is_plain = is_plain and is_here and names == use.names == shard_body.argument_names(use)
    return own if is_plain and own.lineno == own.end_lineno else None


def _statement(use: Use, *, is_early: bool) -> ast.stmt | None:
    """Returns the statement that a function can stand above, which sees the same names there.

    ``is_early`` is of a function whose text is evaluated above the statement, too: nothing that
    the statement does may come before.
    """
    module, node = use.module, use.expression
    above: ast.AST = node
    while not isinstance(above, ast.stmt):
        inner, above = above, module.parent(above)
        if isinstance(above, (ast.Lambda, *LOOPS)):
            return None
        is_first = isinstance(above, ast.Call) and inner in (above.func, *above.args[:1])
        if is_early and not (isinstance(above, ast.stmt) or is_first):
            return None
    scope = module.parent(above)
    while isinstance(scope, (ast.stmt, ast.ExceptHandler, ast.match_case)):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
        scope = module.parent(scope)
    place = module.place(above)
    source = module.source
    is_alone = not source.line(place.line)[: place.column].strip()
    is_alone = is_alone and not source.line(place.line - 1).rstrip().endswith("\\")
    is_inside = use.site.place.column > 0 or use.site.place.line > place.line
    is_fitting = isinstance(above, _SIMPLE) and not isinstance(scope, ast.ClassDef)
    return above if is_fitting and is_alone and is_inside else None


def _names_elsewhere(use: Use, editor: Editor) -> frozenset[str]:
    """Returns the names of functions that were written into other functions than this one."""
    around = use.module.functions_around(use.node)
    written = [(re.match(r"\n*[ \t]+def (\w+)\(", edit.text), edit.line) for edit in editor.edits]
    found = [(match[1], line) for match, line in written if match is not None]
    if not around:
        return frozenset()
    outermost = use.module.place(around[-1])
    here = {name for name, line in found if outermost.line <= line <= outermost.end_line}
    return frozenset(name for name, _ in found) - here


def _base(node: ast.AST, statement: ast.stmt) -> str:
    """Returns a name for what an expression calls, else for what it is assigned to."""
    while isinstance(node, ast.Call):
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        node = node.args[0] if node.args and function in _TRANSFORMS else node.func
    name = getattr(node, "attr", getattr(node, "id", ""))
    if not name and isinstance(statement, ast.Assign):
        target = statement.targets[0]
        name = getattr(target, "attr", getattr(target, "id", ""))
    return name.strip("_") or top_level.FUNCTION


def _bodies(
    use: Use, function: str, editor: Editor, indent: str
) -> list[tuple[list[str], list[str]]]:
    """Returns the parameters of the function and the lines of its body, in different ways."""
    names = None if use.takes_keywords else _names(use)
    starred = ["*args", "**kwargs"] if use.takes_keywords else ["*args"]
    every: list[_Argument] = [(name.strip("*"), 0, False) for name in starred]
    found = []
    if names is not None:
        own = (use.function.parameters if use.function is not None else None) or []
        parts: list[_Argument] = [
            (name, use.known_layout.in_axis(i), any(map(use.is_array, own[i : i + 1])))
            for i, name in enumerate(names)
        ]
        converted = [each for each in parts if each[1] is not None]
        trees = [each for each in converted if not each[2]]
        leading = [each for each in trees if each[1] == 0]
        # Arrays are indexed in the call, and so is a tree that is the only one.
        above = [each for each in trees if each not in leading or len(leading) > 1]
        if _own_lambda(use, function) is None:
            found.append((names, _statements(use, function, parts, above, editor, indent)))
        found.append((names, _statements(use, function, parts, converted, editor, indent)))
    if names is None or (use.known_layout.is_leading and not use.keywords and len(found) > 1):
        lines = lines_taken(use, every, editor, indent)
        lines += _lines(use, function, starred, editor, indent)
        found.append(([name for name, *_ in every] if use.takes_keywords else starred, lines))
    return found


def _statements(
    use: Use,
    function: str,
    parts: Sequence[_Argument],
    above: Sequence[_Argument],
    editor: Editor,
    indent: str,
) -> list[str]:
    """Returns the lines of a body that takes axes off above the call, or in it."""
    given = [
        name
        if (name, axis, is_array) in above
        else shard_body.taken(name, axis, use.axis, is_array=is_array)
        for name, axis, is_array in parts
    ]
    lines = lines_taken(use, above, editor, indent)
    return lines + _lines(use, function, shard_body.by_name(use, given), editor, indent)


def _names(use: Use) -> list[str] | None:
    """Returns the names of the arguments, None if another call may give more or fewer."""
    known, layout = use.function, use.known_layout
    is_fixed = known is not None and known.parameters is not None
    is_fixed = is_fixed and known.required == len(known.parameters)  # type: ignore[arg-type, union-attr]
    if layout.is_leading and not (is_fixed or use.site.is_called_at_once or use.keywords):
        return None
    return None if use.names is None else shard_body.argument_names(use)


def _lines(use: Use, function: str, given: Sequence[str], editor: Editor, indent: str) -> list[str]:
    """Returns the statements that call the function and return its results with their axes."""
    axes = shard_body.out_axes(use)
    own = _own_lambda(use, function)

    def call(before: str) -> str:
        if own is not None:
            return editor.text(use.module.place(own.body))
        return shard_body.call_of(function, given, editor, indent, len(before))

    if axes is None:
        return [f"return {call('return ')}"]
    if isinstance(axes, tuple):
        names = _result_names(use, function, len(axes))
        target = ", ".join(names) + ("," if len(names) == 1 else "")
        text = call(f"{target} = ")
        if len(f"{indent}{target} = {text}".partition("\n")[0]) > editor.width:
            text = editor.bracketed(text, indent)
        results = list(zip(names, axes, _are_arrays(use, len(axes)), strict=True))
        trees = [each for each in results if each[1] is not None and not each[2]]
        # Those with axes in some fields have a line of their own, and all that do not fit.
        for above in ([each for each in trees if isinstance(each[1], set)], trees):
            returned = _returned(use, results, above)
            if len(f"{indent}return {returned}") <= editor.width:
                break
        else:
            returned = editor.folded(f"({returned})", indent, len(f"{indent}return "))
        lines = lines_taken(use, above, editor, indent, put)
        return [f"{target} = {text}", *lines, f"return {returned}"]
    adding = f"jax.tree.map({shard_body.adding(use, axes)}, "
    text = f"return {adding}{call(f'return {adding})')})"
    if "\n" not in text and len(indent + text) <= editor.width:
        return [text]
    (target,) = _result_names(use, function, 1)
    return [f"{target} = {call(f'{target} = ')}", f"return {adding}{target})"]


def _returned(use: Use, results: Sequence[_Argument], above: Sequence[_Argument]) -> str:
    """Returns the results with their axes, but for those that have them above."""
    texts, axes = [], []
    for each in results:
        name, axis, is_array = each
        texts.append(put(name, axis, use.axis, is_array=True) if is_array else name)
        axes.append(None if is_array or each in above else axis)
    parts = shard_body.grouped(texts, axes, lambda text, axis: put(text, axis, use.axis))
    return ", ".join(parts) + ("," if len(parts) == 1 else "")


def _are_arrays(use: Use, count: int) -> list[bool]:
    """Returns of each result whether it is surely one array."""
    known = use.function
    values = [each.value for each in known.returns] if known is not None else []
    tuples = [value for value in values if isinstance(value, ast.Tuple)]
    if not tuples or len(tuples) < len(values) or any(len(each.elts) != count for each in tuples):
        return [False] * count
    return [
        all(shard_body.is_array_expression(use, each.elts[i]) for each in tuples)
        for i in range(count)
    ]


def _result_names(use: Use, function: str, count: int) -> list[str]:
    """Returns names for results: those that a call assigns or the function returns, if free."""
    tree = ast.walk(ast.parse(f"({function})", mode="eval"))
    used = {part.id for part in tree if isinstance(part, ast.Name)} | {"jax", "_"}
    used.add(use.numpy.partition(".")[0])
    plain = [f"result{i}" for i in range(count)] if count > 1 else ["result"]
    for node in _results(use):
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        names = [getattr(part, "id", getattr(part, "attr", "")) for part in parts]
        if len(names) == count == len({*names} - {""}) and not any(map(keyword.iskeyword, names)):
            return [new if name in used else name for name, new in zip(names, plain, strict=True)]
    return [f"{name}_" if name in used else name for name in plain]


def _results(use: Use) -> list[ast.expr]:
    """Returns what calls of the map are assigned to, and what the function returns."""
    above = [module.parent(call) for module, call in map_calls(use.module, use.site)]
    found = [each.targets[0] for each in above if isinstance(each, ast.Assign)]
    known = use.function.returns if use.function is not None else []
    return [*found, *(each.value for each in known if each.value is not None)]


def _insert(use: Use, statement: ast.stmt, text: str, editor: Editor) -> None:
    """Writes a function above a statement, with blank lines around it."""
    module, line = use.module, editor.line_above(statement)
    above = module.parent(statement)
    gap = 2 if isinstance(above, ast.Module) else 1
    cell = editor.source.cell_of(line)
    is_first = any(
        isinstance(block, list) and block[:1] == [statement] for block in vars(above).values()
    )
    is_there = any((edit.line, edit.column) == (line, 0) for edit in editor.edits)
    blank = 0
    while line - blank > 1 and not editor.source.line(line - blank - 1).strip():
        blank += 1
    if is_first or is_there or (cell is not None and cell[1] == 1):
        blank = gap
    editor.insert(line, 0, "\n" * max(gap - blank, 0) + text + "\n" * gap)
