"""What an analysis may cost, and that it reports what it did not follow."""

import pytest

from pmapx._src.analysis import module
from pmapx._src.analysis.interpreter import functions
from pmapx._src.analysis.project import Project

CHAIN = "".join(f"def f{i}(x): return f{i + 1}(x)\n" for i in range(20))
MANY = "".join(f"f({i})\n" for i in range(20))


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        ("depth", CHAIN + "f0(1)\n"),
        ("readings", "def f(x): return x\n" + MANY),
        ("statements", "def f(x): return x\n" + "y = 1\n" * 30 + "f(y)\n"),
    ],
)
def test_a_spent_budget_is_recorded_where_a_call_is_not_followed(monkeypatch, budget, text):
    monkeypatch.setattr(module, "STATEMENTS", 25 if budget == "statements" else module.STATEMENTS)
    found = Project(["a.py"]).module("a.py", data=f"import jax\njax.pmap\n{text}".encode())
    assert list(found.facts.exhausted) == [budget]
    assert found.facts.exhausted[budget].path == "a.py"


def test_recursion_spends_no_budget():
    text = b"import jax\njax.pmap\ndef f(x): return f(x)\nf(1)\n"
    assert Project(["a.py"]).module("a.py", data=text).facts.exhausted == {}
    assert functions.DEEPEST < 20
