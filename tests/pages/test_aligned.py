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
    after = ["x", "  step = jax.jit(", "    on_each_device(functools.partial(apply, train=False)),"]
    assert aligned(before, [*after, "  )", "y"]) == [("=", 1), ("~", 1), ("+", 2), ("=", 1)]


def test_lines_that_share_nothing_are_gone_and_new():
    assert dict(aligned(["import numpy"], ["return 1"])) == {"-": 1, "+": 1}


def test_lines_are_counted_in_long_files_as_in_short_ones(monkeypatch):
    from pmapx._src.codemod.report import line_counts

    before = ["import jax", "class A:", "    def f(self):", "        return jax.pmap(g)", ""] * 3
    after = [
        "import jax",
        "def new(x):",
        "    def inner(y):",
        "        return y",
        "    return inner",
    ]
    after += ["class A:", "    def f(self):", "        return new(g)", ""] + before[5:]
    expected = line_counts.LineCounts(5, 1, 4, 1)
    assert line_counts.line_counts(before, after) == expected
    monkeypatch.setattr(line_counts, "MOST_ALIGNED", 3)
    assert line_counts.line_counts(before, after) == expected


def test_the_lines_of_a_text_that_does_not_parse_are_counted(monkeypatch):
    from pmapx._src.codemod.report.line_counts import LineCounts, line_counts

    assert line_counts(["f("], ["f(", "def g("]) == LineCounts(1, 0, 0, 0)
