"""Random changes to real Python files: check and migrate end, and nothing is broken by them.

`PMAPX_FUZZ_CASES=20000` runs as many cases in the slow suite; `mutations.case(seed)` is one.
"""

import ast
import codecs
import os
import re
import warnings
from pathlib import Path

import pytest
from mutations import case

from pmapx._src.lint.check import check
from pmapx._src.lint.settings import make

migration = pytest.importorskip("pmapx._src.codemod.migration", reason="needs pmapx[tools]")

SETTINGS = make({"confidence": "low"})
SLOW_CASES = int(os.environ.get("PMAPX_FUZZ_CASES", "4000"))
CHUNK = 100


def parsed(data, compiles=False):
    """Return the tree, or None if Python does not read (or compile) it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if compiles:
                return compile(data, "case", "exec", dont_inherit=True)
            return ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def lines_of(data):
    """Cut at what Python takes for the end of a line; a mark before the first is none's."""
    text = data.removeprefix(codecs.BOM_UTF8)
    return re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def statement_lines(tree, outcomes):
    """Return the lines of the statements that hold an outcome: of a block only its head."""
    touched = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            # An import of a removed name goes.
            touched.update(range(node.lineno, node.end_lineno + 1))
        if not isinstance(node, (ast.stmt, ast.match_case, ast.ExceptHandler)):
            continue
        parts = [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.match_case, ast.ExceptHandler))
        ]
        places = [part for part in parts for part in ast.walk(part) if hasattr(part, "lineno")]
        head = {line for part in places for line in range(part.lineno, part.end_lineno + 1)}
        head |= {node.lineno} if hasattr(node, "lineno") else set()
        if any(outcome.place.line in head for outcome in outcomes):
            touched |= set(range(min(head), max(head) + 2))
    return touched


def lines_that_follow(tree, touched):
    """Return the lines that change with a map: what its function returns, and calls of the map.

    ``touched`` are the lines of statements with a map. The function is named there, or defined
    there by its decorator; the map has the name that is bound there.
    """
    named, bound = set(), set()
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) in touched and isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            (bound if isinstance(node.ctx, ast.Store) else named).add(name)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_decorated = any(each.lineno in touched for each in node.decorator_list)
            bound |= {node.name} if is_decorated else set()
            if is_decorated or node.name in named:
                returns = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
                found.update(n for r in returns for n in range(r.lineno, r.end_lineno + 1))
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name in bound:
            found.update(range(node.lineno, node.end_lineno + 1))
    return found


def lines_unused(tree, after):
    """Return the lines of assignments whose names are read before, and not after."""
    read_after, found = scopes_reading(after), set()
    for scope, names in scopes_reading(tree).items():
        for node in ast.walk(scope):
            targets = getattr(node, "targets", ())
            is_name = len(targets) == 1 and isinstance(targets[0], ast.Name)
            if is_name and targets[0].id in names:
                now = [n for s, n in read_after.items() if same_name(s, scope)]
                if any(targets[0].id not in each for each in now):
                    found.update(range(node.lineno, node.end_lineno + 1))
    return found


def scopes_reading(tree):
    functions = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node: {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        for node in ast.walk(tree)
        if isinstance(node, functions)
    }


def same_name(one, other):
    return getattr(one, "name", "") == getattr(other, "name", "")


def complaint(path, data):
    """Check and migrate one case; what is wrong with the result, in words."""
    path.write_bytes(data)
    count = len(lines_of(data)) + 1
    for finding in check([str(path)], SETTINGS).findings:
        if not 1 <= finding.place.line <= finding.place.end_line <= count:
            return f"{finding.code} lies at {finding.place}, of {count} lines"
    for to, style in (("pmapx", "stacked"), ("shard_map", "stacked"), ("shard_map", "global")):
        path.write_bytes(data)
        done = migration.migrate([str(path)], to=to, style=style)
        if done.failure is not None:
            raise done.failure
        for file in done.changed:
            found = complaint_about(file, keeps_lines=style == "stacked")
            path.write_bytes(file.after)
            if not found and migration.migrate([str(path)], to=to, style=style).changed:
                found = "a second run changes it again"
            if found:
                return f"to {to}: {found}:\n{file.after!r}"
    return ""


def complaint_about(file, keeps_lines):
    """Compare a file before and after; what is wrong, in words."""
    tree = parsed(file.before)
    if tree is None:
        return "a file that does not parse was changed"
    if parsed(file.after) is None:
        return "the result does not parse"
    if parsed(file.before, compiles=True) and not parsed(file.after, compiles=True):
        return "the result does not compile"
    if not keeps_lines:
        return ""
    touched = statement_lines(tree, [each for each in file.outcomes if not each.reason])
    touched |= lines_that_follow(tree, touched) | lines_unused(tree, parsed(file.after))
    after = iter(lines_of(file.after))
    for number, line in enumerate(lines_of(file.before), start=1):
        # The rest must come in the same order, to the byte; x[0] may go with its map.
        if number in touched or not line.strip() or b"[0]" in line:
            continue
        if line not in after:
            return f"line {number} is lost, {line!r}"
    return ""


def run(folder, seeds):
    """Run cases; how many were changed by migrate. Fails with the first that went wrong."""
    changed = 0
    for seed in seeds:
        data, path = case(seed), Path(folder) / "case.py"
        try:
            wrong = complaint(path, data)
        except Exception as error:
            error.add_note(f"mutations.case({seed}): {data!r}")
            raise
        assert not wrong, f"mutations.case({seed}): {wrong}\nfrom {data!r}"
        changed += path.read_bytes() != data
    return changed


def test_changed_files_are_survived(tmp_path):
    # Otherwise the parser is tested and little else.
    assert run(tmp_path, range(300)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(300, 300 + SLOW_CASES, CHUNK))
def test_many_changed_files_are_survived(tmp_path, first):
    run(tmp_path, range(first, first + CHUNK))


def test_hostile_flow_ends(tmp_path):
    (tmp_path / "a.py").write_text(
        "import jax\nf = jax.pmap\nwhile f:\n    f = f(f)\n    f = [f] * 3 + [f]\n"
        "    g = {'x': f}\n    f = (f, g, f)\n    g[f] = g\n    f, *g = f, g\n"
        "def h(*a, **k):\n    return h(h, *a, a=a, **k)\nh(h, f)[0](h)[0]\n"
    )
    found = check([str(tmp_path)]).findings
    assert {finding.code for finding in found} == {"PMX501", "PMX505"}
