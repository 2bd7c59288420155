"""Device axes in the text of a jitted function: merged into the batch, and split off again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.syntax import positional, returns
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.codemod.to_jit.candidates import Candidate
from pmapx._src.codemod.to_jit.decisions import Decision
from pmapx._src.codemod.to_jit.stacked.unstacked_body import COPIES, SINGLE, SPLIT

_Body = ast.FunctionDef | ast.Lambda
# By the axis of the examples without the device axis: (n, b, ...), or (n, steps, b, ...).
_MERGED = (
    "{0}.reshape(-1, *{0}.shape[2:])",
    "{0}.swapaxes(0, 1).reshape({0}.shape[1], -1, *{0}.shape[3:])",
)
_STACKED = {
    SPLIT: "{0}.reshape(jax.device_count(), -1, *{0}.shape[1:])",
    COPIES: "jax.numpy.stack([{0}] * jax.device_count())",
}


def refuse_unknown(made: Sequence[Decision]) -> None:
    """Refuses maps whose device axes are not taken off and put on where they can be edited."""
    for each in made:
        if not each.reasons and (each.stacked or each.results):
            found = _changes(each)
            if isinstance(found, str):
                each.refuse(found)


def edit(decision: Decision, editor: Editor) -> None:
    """Merges the device axis of arguments, and gives it to results."""
    if not (decision.stacked or decision.results):
        return
    found = _changes(decision)
    assert not isinstance(found, str)
    candidate = decision.candidate
    numpy = _numpy(candidate.module)
    for node, template in found:
        place = candidate.module.place(node)
        if template in _MERGED and _split(decision, node, template, editor):
            continue
        indent, used = editor.indent(place.line), place.column + len(editor.rest_of_line(place))
        is_constrained = decision.is_constrained and template not in _MERGED
        deeper = indent + editor.hang * is_constrained
        template = template.replace("jax.numpy", numpy)
        text = _text(
            candidate, node, template, editor, deeper, len(deeper) if is_constrained else used
        )
        if is_constrained:
            sharding = f"jax.NamedSharding(mesh, jax.P({editor.quoted(decision.axis)}))"
            text = editor.folded_call(
                "jax.lax.with_sharding_constraint", [text, sharding], indent, used
            )
        editor.replace(place, text)


def _split(decision: Decision, node: ast.expr, template: str, editor: Editor) -> bool:
    """Edits ``a, b = jax.tree.map(lambda x: x[0], (a, b))`` of which not all are batches."""
    module = decision.candidate.module
    statement, names = module.parent(node), _names(_operand(node))
    body = _body(decision.candidate)
    assert body is not None
    own = _parameters(decision.candidate, body)
    merged = [name for name in names if name in own and own.index(name) in decision.stacked]
    if len(merged) == len(names) or not isinstance(statement, ast.Assign):
        return False
    place = module.place(statement)
    indent, lines = editor.indent(place.line), []
    for several, text in ((merged, template.format("x")), ([*set(names) - set(merged)], "x[0]")):
        taken = ", ".join(sorted(several, key=names.index))
        args = [f"lambda x: {text}", f"({taken})" if len(several) > 1 else taken]
        used = len(f"{indent}{taken} = ")
        lines.append(f"{taken} = {editor.folded_call('jax.tree.map', args, indent, used)}")
    editor.replace(place, f"\n{indent}".join(lines))
    return True


def _changes(decision: Decision) -> list[tuple[ast.expr, str]] | str:
    """Returns ``x[0]`` and ``x[None]`` with what takes their place; or why they cannot change."""
    candidate = decision.candidate
    body = _body(candidate)
    if body is None:
        return "its arguments have a leading device axis, and its definition is not in this file"
    if len(decision.batch_axes) > 1:
        return "the example axis of its batches differs between calls"
    both = decision.stacked & decision.per_device
    if both:
        return f"its argument {min(both)} mixes batches and per-device values"
    found: dict[ast.expr, str] = {}
    names = _parameters(candidate, body)
    if [each.arg for each in body.args.args] == [] and body.args.vararg is not None:
        names = [body.args.vararg.arg] * (max(decision.stacked, default=0) + 1)
        if decision.stacked and decision.per_device:
            return f"its argument {min(decision.per_device)} is a per-device value"
    for position in sorted(decision.stacked):
        name = names[position] if position < len(names) else ""
        taken = next(_taking(body, name), None)
        if taken is None:
            return f"its argument {position} has a leading device axis, which it uses itself"
        found[taken] = _MERGED[max(decision.batch_axes, default=0)]
    for value in _results(body):
        for position, kinds in decision.results.items():
            if len(kinds) > 1 or not kinds <= set(_STACKED):
                return "its results are not all per example along the same axis"
            put = _at(value, position)
            if put is None or not _is_map(put, "None"):
                return "a result has a device axis, which has no global equivalent"
            template = _STACKED[next(iter(kinds))]
            if found.setdefault(put, template) != template:
                return "its results are not all per example along the same axis"
    return list(found.items())


def _body(candidate: Candidate) -> _Body | None:
    """Returns the function that is mapped, as it is defined in its file."""
    function = candidate.function
    if isinstance(function, ast.Call) and ast.unparse(function.func).endswith("partial"):
        function = function.args[0] if len(function.args) == 1 else function
    if isinstance(function, ast.FunctionDef | ast.Lambda):
        return function
    name = ast.unparse(function).removeprefix("self.")
    found = [
        each
        for each in ast.walk(candidate.module.source.tree)
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]
    return found[0] if len(found) == 1 else None


def _parameters(candidate: Candidate, body: _Body) -> list[str]:
    names = positional(body.args)
    is_method = names[:1] == ["self"]
    if candidate.names and not any("*" in each for each in candidate.names):
        return list(candidate.names)
    return names[1:] if is_method else names


def _taking(body: _Body, name: str) -> Iterator[ast.expr]:
    """Yields where the device axis of an argument is taken off, in what the global form adds."""
    if isinstance(body, ast.Lambda):
        nodes: Iterator[ast.AST] = ast.walk(body.body)
    else:
        nodes = (each.value for each in body.body if isinstance(each, ast.Assign)
                 and name in _names(each.targets[0]))  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.expr) and _is_map(node, "0") and name in _names(_operand(node)):
            yield node


def _results(body: _Body) -> Iterator[ast.expr]:
    if isinstance(body, ast.Lambda):
        yield body.body
    for statement in returns(body):
        if statement.value is not None:
            yield statement.value


def _at(value: ast.expr, position: int) -> ast.expr | None:
    if position == SINGLE:
        return value
    if not isinstance(value, ast.Tuple):
        return value if _is_map(value, "None") else None
    flat: list[ast.expr] = []
    for each in value.elts:
        if not isinstance(each, ast.Starred):
            flat.append(each)
        elif _is_map(each.value, "None") and isinstance(tree := _operand(each.value), ast.Tuple):
            flat += [each.value] * len(tree.elts)
        else:
            return None
    return flat[position] if position < len(flat) else None


def _is_map(node: ast.expr, index: str) -> bool:
    """Whether an expression is ``x[0]`` or ``x[None]``, of an array or of each leaf of a tree."""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.slice) == index
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "jax.tree.map"
        and len(node.args) == 2
        and isinstance(node.args[0], ast.Lambda)
        and (_is_map(node.args[0].body, index) or _expands(node.args[0].body, index))
    )


def _expands(node: ast.expr, index: str) -> bool:
    text = ast.unparse(node)
    return index == "None" and text.endswith(".expand_dims(x, 0)") and isinstance(node, ast.Call)


def _operand(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node.args[1]  # type: ignore[attr-defined]


def _names(node: ast.expr) -> list[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return [each.id for each in parts if isinstance(each, ast.Name)]


def _text(
    candidate: Candidate, node: ast.expr, template: str, editor: Editor, indent: str, used: int
) -> str:
    """Returns an expression with ``x[0]`` or ``x[None]`` replaced by another one."""
    operand = _operand(node)
    text = editor.text(candidate.module.place(operand))
    if isinstance(node, ast.Subscript) and isinstance(operand, ast.Name):
        return template.format(text)
    args = [f"lambda x: {template.format('x')}", text]
    return editor.folded_call("jax.tree.map", args, indent, used)


def _numpy(module: Module) -> str:
    """Returns what the file calls ``jax.numpy``."""
    for node in ast.walk(module.source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "jax.numpy" and alias.asname:
                    return alias.asname
    return "jax.numpy"
