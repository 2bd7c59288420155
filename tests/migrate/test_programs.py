"""Whole programs, migrated and run: what they give stays the same."""

import ast
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_programs import PROGRAMS, Program, run

migration = pytest.importorskip("pmapx.migrate.migration", reason="needs pmapx[tools]")


@dataclasses.dataclass(frozen=True)
class Style:
    """How programs are migrated; ``mode`` is how a program that leaves nothing must run after."""

    options: Callable[[Program], dict[str, Any]]
    mode: str = "plain"


# A new style is a line here.
STYLES = {
    "stacked": Style(lambda program: {}),
}
# Run in every test run: a loop, a class, a package, a value, collectives.
FAST = ["class_trainer", "data_parallel_mlp", "sharded_matmul"]
CHUNKS = {"fast": [PROGRAMS[name] for name in FAST]}


def _chunk_of(program):
    return "-".join(["pure" if not program.libraries else program.libraries[0]])


for each in PROGRAMS.values():
    if each.name not in FAST:
        CHUNKS.setdefault(_chunk_of(each), []).append(each)


def migrated(program, style, folder):
    """Migrate a copy of a program; the copy and every outcome, in the order of files and lines."""
    copy = program.copied_to(folder)
    done = migration.migrate([str(copy.path)], **STYLES[style].options(copy))
    assert not done.unreadable
    for file in done.changed:
        copy.path.joinpath(file.path).write_bytes(file.after)
    return copy, [each for file in done.files for each in file.outcomes]


def differences(before, after, tolerance):
    """Return what differs, in words; nothing if all is the same."""
    for which, results in (("before", before), ("after", after)):
        if isinstance(results, str):
            return f"{which}: {results}"
    if [path for path, _ in before] != [path for path, _ in after]:
        return f"before {[path for path, _ in before]}, after {[path for path, _ in after]}"
    for (path, old), (_, new) in zip(before, after, strict=True):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            return f"{path}: {old.dtype}{old.shape} became {new.dtype}{new.shape}"
        if old.tobytes() == new.tobytes():
            continue
        apart = np.max(np.abs(old - new)) / np.max(np.abs(old))
        if not tolerance or not apart <= tolerance:
            return f"{path}: {apart:.1e} apart, of the largest"
    return ""


@pytest.mark.parametrize(
    "chunk",
    [name if name == "fast" else pytest.param(name, marks=pytest.mark.slow) for name in CHUNKS],
)
def test_migrated_programs_give_the_same(tmp_path, chunk):
    programs = [program for program in CHUNKS[chunk] if not program.missing]
    if not programs:
        pytest.skip(f"needs {', '.join(CHUNKS[chunk][0].libraries)}")
    before = run(programs, ["installed"] * len(programs), tmp_path / "before.pickle")
    wrong = {}
    for style in STYLES:
        copies, modes = [], []
        for program in programs:
            copy, outcomes = migrated(program, style, tmp_path / style)
            copies.append(copy)
            # What is left is still pmap.
            is_left = any(each.reason for each in outcomes)
            modes.append("installed" if is_left else STYLES[style].mode)
        after = run(copies, modes, tmp_path / f"{style}.pickle")
        for program in programs:
            tolerance = program.expected("tolerance", style)
            name = program.name
            if found := differences(before[name], after[name], tolerance):
                wrong[f"{name}, {style}"] = found
    assert not wrong, "\n".join(f"{where}: {what}" for where, what in wrong.items())


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_rewritten_but_for_what_has_a_reason(tmp_path, name, style):
    program, outcomes = migrated(PROGRAMS[name], style, tmp_path)
    assert outcomes, "no site was found"
    expected = program.expected("left", style) or []
    left = [each.reason for each in outcomes if each.reason]
    assert len(left) == len(expected), left
    assert all(part in reason for part, reason in zip(expected, left, strict=True)), left
    again = migration.migrate([str(program.path)], **STYLES[style].options(program))
    assert not again.changed
    for file in program.files:
        tree = ast.parse(file.read_bytes())
        if STYLES[style].mode == "plain":
            assert "pmapx" not in imported(tree)


def imported(tree):
    """Return the packages that a file imports."""
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}
