"""What a migration adds to a program: lines, functions, and arguments that are replicated.

A program is a text, a file or a folder of files. Run as a script with two of them, or with none for
the table of this folder's README:

    python yardstick.py [BEFORE AFTER]
"""

import ast
import dataclasses
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "programs"
HAND = "_by_hand"
PROGRAMS = {
    path.stem: (path, path.with_name(path.stem + HAND + path.suffix))
    for path in sorted(FOLDER.iterdir())
    if not path.stem.endswith(HAND) and (path.suffix == ".py" or (path / "main.py").exists())
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A rewritten program beside the original; blank lines do not count."""

    before: int
    added: int
    removed: int
    functions: tuple[str, ...]
    replicated: int

    @property
    def net(self):
        return self.added - self.removed


def difference(before, after):
    """Return everything that is measured here."""
    return Difference(
        before=sum(map(len, _lines(before).values())),
        added=added_lines(before, after),
        removed=added_lines(after, before),
        functions=tuple(new_functions(before, after)),
        replicated=replicated_arguments(after),
    )


def added_lines(before, after):
    """Return how many lines the shortest diff adds; a changed line is one added and one removed."""
    old, new = _lines(before), _lines(after)
    return sum(len(lines) - _common(old.get(name, []), lines) for name, lines in new.items())


def new_functions(before, after):
    """Return the functions, with the names around them, that only the rewritten program defines.

    A function of the same arguments and body under a new name is no new one.
    """
    old, new = _functions(before), _functions(after)
    renamed = {body for name, body in old.items() if name not in new}
    return sorted(name for name, body in new.items() if name not in old and body not in renamed)


def replicated_arguments(program):
    """Return how many specs ``P()`` are written for arguments: state without a device axis."""
    return sum(_replicated(ast.parse(text)) for text in _texts(program).values())


def _replicated(node):
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("P", "PartitionSpec"):
            return not node.args
        if name == "NamedSharding":
            return 0
    if isinstance(node, ast.keyword) and node.arg in ("out_specs", "out_shardings"):
        return 0
    return sum(map(_replicated, ast.iter_child_nodes(node)))


def _texts(program):
    if isinstance(program, str):
        return {"": program}
    if program.is_dir():
        return {str(path.relative_to(program)): path.read_text() for path in program.rglob("*.py")}
    return {"": program.read_text()}


def _lines(program):
    return {
        name: [line.rstrip() for line in text.splitlines() if line.strip()]
        for name, text in _texts(program).items()
    }


def _common(old, new):
    """The length of the longest common subsequence."""
    row = [0] * (len(new) + 1)
    for line in old:
        before = row
        row = [0]
        for i, other in enumerate(new):
            row.append(before[i] + 1 if line == other else max(row[i], before[i + 1]))
    return row[-1]


def _functions(program):
    found = {}

    def visit(node, around):
        for child in ast.iter_child_nodes(node):
            inner = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*around, child.name)
                if not isinstance(child, ast.ClassDef):
                    body = "".join(map(ast.dump, child.body))
                    found[".".join(inner)] = ast.dump(child.args) + body
            visit(child, inner)

    for name, text in _texts(program).items():
        visit(ast.parse(text), (name.removesuffix(".py"),) if name else ())
    return found


def table(programs=None):
    """Return the Markdown table of programs: each before and after, by hand if not given."""
    rows = ["| program | lines | added | removed | new functions |", "|---|---|---|---|---|"]
    for name, (before, after) in (programs or PROGRAMS).items():
        found = difference(before, after)
        functions = ", ".join(f"`{each}`" for each in found.functions) or "0"
        cells = [f"`{name}`", found.before, found.added, found.removed, functions]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(difference(*map(Path, sys.argv[1:])) if len(sys.argv) > 1 else table())
