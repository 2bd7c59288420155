"""The house rules that no linter knows: sizes, private JAX, and a map that shows every module."""

import ast
import collections
import re
from pathlib import Path

import pmapx

PACKAGE = Path(pmapx.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
FILES = sorted(PACKAGE.rglob("*.py"))
# One file a rule or finding: found by its folder, so that adding one changes no list.
FOUND_BY_FOLDER = ("lint/rules", "audit/findings", "codemod/forms", "watch/site")


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def functions(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def lines_of_code(function):
    """The lines of a function, its docstring aside."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if is_docstring else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_a_file_ends_at_450_lines_and_a_function_at_80():
    long = {}
    for file in FILES:
        text = file.read_text("utf-8")
        long |= {name(file): text.count("\n")} if text.count("\n") > 450 else {}
        for f in functions(ast.parse(text)):
            if (lines := lines_of_code(f)) > 80:
                long[f"{name(file)}: {f.name}"] = lines

    assert long == {}


def is_found_by_folder(file):
    """Whether a module is a rule, a finding or a form, of which there may be any number."""
    is_form = "codemod/forms" not in name(file) or "\nPREFERENCE = " in file.read_text("utf-8")
    return is_form and name(file).removeprefix("_src/").startswith(FOUND_BY_FOLDER)


def test_a_package_has_at_most_fifteen_modules_besides_rules_findings_and_forms():
    counts = collections.Counter(
        file.parent for file in FILES if file.name != "__init__.py" and not is_found_by_folder(file)
    )

    assert {name(room): count for room, count in counts.items() if count > 15} == {}


def test_only_the_fast_path_reaches_into_jax():
    for file in FILES:
        if "fastpath" in name(file):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("jax._src") for alias in node.names), file
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("jax._src"), file


def rooms_on_the_map():
    """The map of CONTRIBUTING.md: the text below each room, by the room's path."""
    text = CONTRIBUTING.read_text("utf-8")
    listed = re.search(r"```text\nsrc/pmapx/_src/\n(.*?)```", text, re.DOTALL).group(1)
    parts = re.split(r"^  (\S+)/ ", listed, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_module_is_on_the_map():
    shown, missing = rooms_on_the_map(), []
    for file in FILES:
        room = name(file.parent).removeprefix("_src").lstrip("/")
        if room in ("", ".") or file.stem == "__init__" or room.startswith(FOUND_BY_FOLDER):
            continue
        if not re.search(rf"(?<!\w){file.stem}(?!\w)", shown.get(room, "")):
            missing.append(name(file))

    assert missing == []


def test_nothing_on_the_map_is_gone():
    gone = [room for room in rooms_on_the_map() if not (PACKAGE / "_src" / room).is_dir()]

    assert gone == []
