"""Whole programs, migrated and run: what they give stays the same.

Those that need other people's libraries are run by `tests/peers/test_migrated_programs.py`.
"""

import ast

import pytest
from example_programs import PROGRAMS
from migrated_programs import STYLES, chunks, migrated, of_libraries, wrong_after_migration

from pmapx._src.codemod import migration

# Run in every test run: a class, a loop on the devices, pmap as a value, a package.
FAST = ("class_trainer", "kmeans", "map_as_value", "vision_package")
OTHERS = chunks(program for program in of_libraries(False) if program.name not in FAST)


def test_migrated_programs_give_the_same(tmp_path):
    wrong = wrong_after_migration([PROGRAMS[name] for name in FAST], tmp_path)
    assert not wrong, "\n".join(map(": ".join, wrong.items()))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", OTHERS)
def test_many_migrated_programs_give_the_same(tmp_path, chunk):
    wrong = wrong_after_migration(OTHERS[chunk], tmp_path)
    assert not wrong, "\n".join(map(": ".join, wrong.items()))


CASES = [
    pytest.param(
        name,
        style,
        marks=() if style == "stacked" or name in FAST else pytest.mark.slow,
    )
    for name in PROGRAMS
    for style in STYLES
]


@pytest.mark.parametrize(("name", "style"), CASES)
def test_a_program_is_rewritten_but_for_what_has_a_reason(tmp_path, name, style):
    program, outcomes = migrated(PROGRAMS[name], style, tmp_path)
    assert outcomes, "no site was found"
    expected = program.expected("left", style) or []
    left = [each.reason for each in outcomes if each.reason]
    assert len(left) == len(expected), left
    assert all(part in reason for part, reason in zip(expected, left, strict=True)), left
    for file in program.files:
        tree = ast.parse(file.read_bytes())
        if STYLES[style].mode == "plain":
            assert "pmapx" not in imported(tree)
    # What was named is not there any more.
    options = STYLES[style].options(program) | ({"named": ()} if style == "replicated" else {})
    assert not migration.migrate([str(program.path)], **options).changed


def imported(tree):
    """Return the packages that a file imports."""
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}
