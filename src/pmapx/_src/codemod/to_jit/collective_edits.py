"""Calls of collectives in the source, replaced by what they are over the global batch."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping

from pmapx._src.analysis.module import Module
from pmapx._src.codemod.text.call_tokens import arguments
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.decisions import Replaced, Span
from pmapx._src.source.rewriting.edits import between
from pmapx._src.source.rewriting.import_edits import stands_alone

COUNT = "jax.device_count()"
_ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List,
          ast.Dict)  # fmt: skip
_BINDING = (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Compare, ast.Starred)
# What the report states of a removed collective.
_COMMENT = re.compile(
    r"devices?\b|replicas?\b|hosts?\b|pmap|pmean|psum|all.?reduce|sync|across|cross|averag|aggregat"
    r"|axis.?name",
    re.I,
)
_ACTING = (ast.Call, ast.NamedExpr, ast.Await)
_TREE_MAP = re.compile(r"(^|\.)(tree_map|tree\.map)$")
_PARAGRAPH = re.compile(r"\s*#(?!\s*(TODO|FIXME|NOTE|XXX|pylint|type:|fmt:|noqa|=|-|#))")


def edit(module: Module, replaced: Mapping[Span, Replaced], editor: Editor) -> None:
    """Edits the calls of one file, the inner ones first."""
    found = {}
    for node in ast.walk(module.source.tree):
        if isinstance(node, ast.Call):
            at = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            each = next((r for span, r in replaced.items() if span[1:] == at), None)
            if each is not None:
                found[node] = each
    done: set[ast.AST] = set()
    for node in sorted(found, key=lambda n: (-n.lineno, -n.col_offset, n.end_col_offset or 0)):
        if node not in done:
            done |= _edit(module, node, found, editor)


def _edit(
    module: Module, node: ast.Call, found: Mapping[ast.Call, Replaced], editor: Editor
) -> set[ast.AST]:
    """Edits a call; returns the nodes that are done with it."""
    each, parent = found[node], module.parent(node)
    ratio = _ratio(parent, found)
    if ratio is not None:
        numerator, denominator = ratio
        statement = module.parent(parent)
        if _is_identity(statement, parent, numerator) and _drop(module, statement, editor):
            return {numerator, denominator}
        is_bound = isinstance(statement, _BINDING)
        editor.replace(module.place(parent), _operand(module, numerator, editor, is_bound=is_bound))
        return {numerator, denominator}
    if each.name == "axis_index":
        _edit_index(module, node, parent, editor)
        return {node}
    if each.power == 0:
        tree = _mapped_tree(module, node)
        value = node if tree is None else tree
        statement = module.parent(value)
        if _is_identity(statement, value, value) and _drop(module, statement, editor):
            return {node}
        if tree is not None:
            editor.replace(module.place(tree), editor.text(arguments(editor.source, tree)[1][1]))
            return {node}
    editor.replace(module.place(node), _text(module, node, each, editor))
    if each.power and not each.is_number and each.meaning:
        _explain(module, node, each, editor)
    return {node}


def _mapped_tree(module: Module, node: ast.Call) -> ast.Call | None:
    """Returns ``jax.tree.map(lambda x: pmean(x, ...), tree)`` around a collective."""
    function = module.parent(node)
    if not isinstance(function, ast.Lambda) or function.body is not node or not node.args:
        return None
    call = module.parent(function)
    is_map = isinstance(call, ast.Call) and _TREE_MAP.search(ast.unparse(call.func))
    if not isinstance(call, ast.Call) or not is_map or call.keywords or len(call.args) != 2:
        return None
    is_same_name = [each.arg for each in function.args.args] == [ast.unparse(node.args[0])]
    return call if is_same_name and call.args[0] is function else None


def _edit_index(module: Module, node: ast.Call, parent: ast.AST, editor: Editor) -> None:
    """Drops it from a sum; of a key that each device folds its index into, leaves the key."""
    is_key = isinstance(parent, ast.Call) and ast.unparse(parent.func).endswith("fold_in")
    if not is_key or parent.args[1:] != [node]:  # type: ignore[attr-defined]
        is_product = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
        term = parent if is_product else node
        total = module.parent(term)
        if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add):
            other = total.right if total.left is term else total.left
            editor.replace(module.place(total), editor.text(module.place(other)))
        else:
            editor.replace(module.place(term), "0")
        return
    assert isinstance(parent, ast.Call)
    statement = module.parent(parent)
    if _is_identity(statement, parent, parent) and _drop(module, statement, editor):
        return
    editor.replace(module.place(parent), _operand(module, parent, editor, is_bound=False))
    if isinstance(statement, ast.Assign):
        line = _comment_above(module, statement.lineno)
        editor.edits += [between((line, 0), (statement.lineno, 0))] * (line < statement.lineno)


def _ratio(parent: ast.AST, found: Mapping[ast.Call, Replaced]) -> tuple[ast.Call, ast.Call] | None:
    """Returns psum(x) and the number of devices that it is divided by: x, over the batch."""
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Div):
        return None
    left, right = parent.left, parent.right
    if left not in found or right not in found:
        return None
    one, other = found[left], found[right]  # type: ignore[index]
    is_count = other.power == 1 and (other.name == "axis_size" or _is_one(right))
    if is_count and one.power == 1 and not one.is_number and not one.is_tree:
        return left, right  # type: ignore[return-value]
    return None


def _text(module: Module, node: ast.Call, each: Replaced, editor: Editor) -> str:
    if each.name == "axis_size" or (each.is_number and each.power == 1 and _is_one(node)):
        return COUNT
    parent = module.parent(node)
    if each.power == 0:
        return _operand(module, node, editor, is_bound=isinstance(parent, _BINDING))
    factor = COUNT if abs(each.power) == 1 else f"{COUNT} ** {abs(each.power)}"
    if each.is_tree:
        scaled = f"{factor} * x" if each.power > 0 else f"x / {factor}"
        tree = editor.text(arguments(editor.source, node)[0][1])
        return f"jax.tree.map(lambda x: {scaled}, {tree})"
    operand = _operand(module, node, editor, is_bound=True)
    text = f"{factor} * {operand}" if each.power > 0 else f"{operand} / {factor}"
    return f"({text})" if isinstance(parent, _BINDING) else text


def _operand(module: Module, node: ast.Call, editor: Editor, *, is_bound: bool) -> str:
    """Returns the operand of a collective, in parentheses where it is part of an expression."""
    place = arguments(editor.source, node)[0][1]
    operand = node.args[0] if node.args else node.keywords[0].value
    is_bare = place == module.place(operand) and not isinstance(operand, _ATOMS)
    text = editor.text(place)
    return f"({text})" if is_bound and is_bare else text


def _is_one(node: ast.expr) -> bool:
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    return isinstance(first, ast.Constant) and first.value == 1


def _is_identity(statement: ast.AST, value: ast.AST, call: ast.Call) -> bool:
    """Whether a statement gives the operand of a collective its own name."""
    if not isinstance(statement, ast.Assign) or statement.value is not value or not call.args:
        return False
    targets = [ast.unparse(target) for target in statement.targets]
    operand = call.args[1 if isinstance(call.args[0], ast.Lambda) else 0]
    return targets == [ast.unparse(operand)]


def _drop(module: Module, statement: ast.AST, editor: Editor) -> bool:
    """Drops ``x = pmean(x, ...)``, with the comment above it that describes it."""
    place = module.place(statement)
    parent = module.parent(statement)
    blocks = [getattr(parent, name, []) for name in ("body", "orelse", "finalbody")]
    block = next((block for block in blocks if statement in block), [])
    if not stands_alone(module.source, statement):
        return False
    if len(block) < 2:  # ``if axis_name is not None:`` has nothing else to do.
        is_alone = isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse
        if not is_alone or any(isinstance(n, _ACTING) for n in ast.walk(parent.test)):  # type: ignore[attr-defined]
            return False
        return _drop(module, parent, editor)
    line = _comment_above(module, place.line)
    editor.edits.append(between((line, 0), (place.end_line + 1, 0)))
    return True


def _comment_above(module: Module, line: int) -> int:
    """Returns the first line of the comment above a line, if it describes a collective."""
    first = line
    while first > 1 and _PARAGRAPH.match(module.source.line(first - 1)):
        first -= 1
    text = " ".join(module.source.line(each) for each in range(first, line))
    return first if _COMMENT.search(text) else line


def _explain(module: Module, node: ast.AST, each: Replaced, editor: Editor) -> None:
    """Explains the factor above the statement."""
    line = module.statement(node).lineno
    first = _comment_above(module, line)
    text = f"The {each.meaning}.".replace("the device's own", "each device's own")
    indent = editor.indent(line)
    lines = textwrap.wrap(text, editor.width - len(indent) - 2)
    new = between((first, 0), (line, 0), "".join(f"{indent}# {each}\n" for each in lines))
    if new not in editor.edits:
        editor.edits.append(new)
