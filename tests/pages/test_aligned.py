"""Lines of two versions beside each other."""

import pytest

from pmapx._src.codemod.report.side_by_side import aligned


def rebuilt(before, after, steps):
    """Walk the steps; what both sides are then."""
    old, new, at, there = [], [], 0, 0
    for kind, count in steps:
        if kind != "+":
            old += before[at : at + count]
            at += count
        if kind != "-":
            new += after[there : there + count]
            there += count
        if kind == "=":
            assert old[-count:] == new[-count:]
    return old, new


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        (["a"], []),
        ([], ["a"]),
        (["a", "b", "c"], ["a", "x", "y", "c"]),
        ([f"line {n}" for n in range(60)], [f"other {n}" for n in range(70)]),
    ],
)
def test_the_steps_go_through_both_versions_whole(before, after):
    assert rebuilt(before, after, aligned(before, after)) == (before, after)


def test_a_statement_that_became_several_lines_stands_beside_its_first():
    before = ["x", "  step = jax.pmap(functools.partial(apply, train=False))", "y"]
    after = ["x", "  step = jax.jit(", "    one_row_each(functools.partial(apply, train=False)),"]
    assert aligned(before, [*after, "  )", "y"]) == [("=", 1), ("~", 1), ("+", 2), ("=", 1)]


def test_lines_that_share_nothing_are_gone_and_new():
    assert dict(aligned(["import numpy"], ["return 1"])) == {"-": 1, "+": 1}
