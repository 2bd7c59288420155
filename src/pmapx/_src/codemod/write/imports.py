"""What a migrated file needs at its top, and what it no longer needs there."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set

import libcst as cst
import libcst.matchers as m

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Named
from pmapx._src.codemod.decide import axis_names
from pmapx._src.codemod.write import emitted
from pmapx._src.codemod.write.emitted import Manner


def is_emitted(node: ast.AST, name: str, manner: Manner) -> bool:
    """Tells whether a function is the one that an earlier run wrote."""
    found = ast.parse(emitted.source(name, manner)).body[-1]
    return axis_names.without_name(found) == axis_names.without_name(node)


def is_of_jax(alias: ast.alias, module: Module) -> bool:
    """Tells whether an import brings the function that JAX removed, whose place is taken."""
    reference = module.facts.references.get(alias)
    return reference is not None and reference.name == f"jax.{alias.asname or alias.name}"


def add(tree: cst.Module, used: set[str], module: Module, manner: Manner) -> cst.Module:
    """Returns the file, or a notebook's cell, with the functions that it uses."""
    if not used:
        return tree
    here = {
        node.name
        for node in module.source.tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in emitted.TEXTS
    }
    wanted = [name for name in emitted.with_needs(used, manner) if name not in here]
    at = _end_of_imports(tree.body, used)
    lines = [
        f"{line}\n"
        for line in emitted.imports(wanted, manner)
        if not _is_imported(tree.body[:at], line)
    ]
    if module.env.find("jax") != frozenset({Named("jax")}):
        lines.append("import jax\n")
    axis_name = axis_names.of_maps(module)
    texts = [
        axis_names.with_name(emitted.text(name, tree.default_indent, manner), axis_name)
        for name in wanted
    ]
    return _inserted(tree, at, lines, texts) if lines or texts else tree


def without(tree: cst.Module, names: Set[str]) -> cst.Module:
    """Takes names out of ``from jax import ...``, by which the module knows them."""
    changed = tree.visit(_Taker(names)) if names else tree
    assert isinstance(changed, cst.Module)
    return changed


class _Taker(cst.CSTTransformer):
    def __init__(self, names: Set[str]) -> None:
        super().__init__()
        self._names = names
        self._has_comments = False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._has_comments = bool(m.findall(node, m.Comment()))

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        names = updated_node.names
        if isinstance(names, cst.ImportStar) or not m.matches(
            updated_node, m.ImportFrom(module=m.Name("jax"), relative=[])
        ):
            return updated_node
        kept = [
            alias
            for alias in names
            if (alias.evaluated_alias or alias.evaluated_name) not in self._names
        ]
        if len(kept) == len(names):
            return updated_node
        is_harmless = not any(name.startswith("device_put_") for name in self._names)
        if self._has_comments and is_harmless:
            # A linter finds it; the comment would be lost.
            return updated_node
        if not kept:
            return cst.RemoveFromParent()
        last = kept[-1].with_changes(comma=names[-1].comma)
        return updated_node.with_changes(names=[*kept[:-1], last])


def _inserted(tree: cst.Module, at: int, lines: list[str], texts: list[str]) -> cst.Module:
    """Puts imports and functions where the file's own imports end."""
    body = list(tree.body)
    newline = tree.default_newline
    source = "".join(lines)
    if texts:
        source += ("\n\n" if lines or at else "") + "\n\n".join(texts)
    if lines and at and isinstance(body[at - 1], cst.FunctionDef):
        source = "\n\n" + source
    made = cst.parse_module(source.replace("\n", newline), tree.config_for_parsing)
    added = list(made.body)
    blank = cst.EmptyLine(indent=False, newline=cst.Newline())
    if made.header and added:
        added[0] = added[0].with_changes(leading_lines=[*made.header])
    if at < len(body):
        after = body[at]
        before = list(after.leading_lines)
        while before and before[0].comment is None and not before[0].whitespace.value:
            before.pop(0)
        gap = [blank, blank] if texts else []
        body[at] = after.with_changes(leading_lines=[*gap, *before])
    return tree.with_changes(body=[*body[:at], *added, *body[at:]])


def _end_of_imports(body: Sequence[cst.BaseStatement], used: set[str]) -> int:
    """Returns where the file's first imports end: behind the docstring where there are none."""
    end = 0
    is_use = m.Name(value=m.MatchIfTrue(lambda name: name in used))
    for position, statement in enumerate(body):
        if m.findall(statement, is_use):
            break
        if _is_import(statement):
            end = position + 1
        elif position == 0 and m.matches(
            statement, m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])
        ):
            end = 1
        elif position == end and m.matches(statement, m.SimpleStatementLine(body=[m.Pass()])):
            # A notebook's magic, which stays above.
            end = position + 1
        elif not _may_precede_imports(statement):
            break
    written = [
        position
        for position, statement in enumerate(body, start=1)
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef))
        and statement.name.value in emitted.TEXTS
    ]
    # Behind what an earlier run wrote, since the new may use it.
    return max([end, *written])


def _is_imported(body: Sequence[cst.BaseStatement], line: str) -> bool:
    """Tells whether one of these statements binds what a line with one import binds."""
    module, _, name = line.removeprefix("from ").rpartition("import ")
    return any(
        alias.asname is None and alias.evaluated_name == name
        for each in body
        if isinstance(each, cst.SimpleStatementLine)
        for small in each.body
        if isinstance(small, (cst.Import, cst.ImportFrom))
        if _module_of(small) == module.strip() and not isinstance(small.names, cst.ImportStar)
        for alias in small.names
    )


def _module_of(statement: cst.Import | cst.ImportFrom) -> str:
    if isinstance(statement, cst.Import) or statement.module is None or statement.relative:
        return ""
    return cst.Module([]).code_for_node(statement.module)


def _is_import(statement: cst.BaseStatement) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        return any(isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body)
    return isinstance(statement, (cst.Try, cst.If)) and bool(
        m.findall(statement, m.Import() | m.ImportFrom())
    )


def _may_precede_imports(statement: cst.BaseStatement) -> bool:
    """Settings between imports, such as os.environ[...] = ..., do not end them."""
    return isinstance(statement, (cst.SimpleStatementLine, cst.If, cst.Try))
