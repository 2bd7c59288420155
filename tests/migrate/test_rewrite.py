"""Migrated programs: what they give, what their text is, and what is left alone."""

import ast

import pytest
from migrated import assert_same, rewritten, run_all
from pmap_programs import HEAD, PROGRAMS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every program before and after, each side in one process."""
    root = tmp_path_factory.mktemp("programs")
    (root / "before").mkdir()
    (root / "after").mkdir()
    for name, text in PROGRAMS.items():
        after, _ = rewritten(root / "before", HEAD + text, f"{name}.py")
        (root / "after" / f"{name}.py").write_bytes(after)
    return run_all(root / "before", "before"), run_all(root / "after", "after")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_migrated_program_gives_the_same_to_the_bit(runs, name):
    before, after = runs
    assert_same(before[name], after[name])


def test_a_function_that_is_mapped_in_each_call_is_traced_once(runs):
    assert runs[1]["at_once_in_a_function traces"] == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_use_is_rewritten_and_a_second_run_changes_nothing(tmp_path, name):
    after, outcomes = rewritten(tmp_path, HEAD + PROGRAMS[name])
    assert outcomes
    assert [each.reason for each in outcomes] == [""] * len(outcomes)
    ast.parse(after)
    assert rewritten(tmp_path, after) == (after, ())
