"""Random changes to real Python files: check and migrate end, and nothing is broken by them.

`PMAPX_FUZZ_CASES=20000` runs as many cases in the slow suite; `mutations.case(seed)` is one.
"""

import ast
import os
import re
import warnings
from pathlib import Path

import pytest
from mutations import case

from pmapx.migrate.check import check
from pmapx.migrate.settings import make

migration = pytest.importorskip("pmapx.migrate.migration", reason="needs pmapx[tools]")

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
    """Cut at what Python takes for the end of a line."""
    return re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", data)


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


def complaint(path, data):
    """Check and migrate one case; what is wrong with the result, in words."""
    path.write_bytes(data)
    count = len(lines_of(data)) + 1
    for finding in check([str(path)], SETTINGS).findings:
        if not 1 <= finding.place.line <= finding.place.end_line <= count:
            return f"{finding.code} lies at {finding.place}, of {count} lines"
    done = migration.migrate([str(path)])
    tree = parsed(data)
    for file in done.changed:
        if tree is None:
            return "a file that does not parse was changed"
        if parsed(file.after) is None:
            return f"the result does not parse:\n{file.after!r}"
        if parsed(data, compiles=True) is not None and parsed(file.after, compiles=True) is None:
            return f"the result does not compile:\n{file.after!r}"
        changed = [each for each in file.outcomes if not each.reason]
        touched = statement_lines(tree, changed)
        after = iter(lines_of(file.after))
        for number, line in enumerate(lines_of(data), start=1):
            # What an untouched file says must come in the same order, to the byte.
            if number not in touched and line.strip() and line not in after:
                return (
                    f"line {number} is lost: {line!r} in\n{file.after.decode('utf-8', 'replace')}"
                )
        path.write_bytes(file.after)
        if migration.migrate([str(path)]).changed:
            return f"a second run changes it again:\n{file.after!r}"
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
