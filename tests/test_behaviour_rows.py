"""Each row of the behaviours table has a test that names it."""

import ast
from pathlib import Path

ROWS = {
    *(f"A{k}" for k in range(1, 19)),
    *(f"B{k}" for k in range(1, 9)),
    *(f"C{k}" for k in range(1, 7)),
    *(f"D{k}" for k in range(1, 5)),
    *(f"F{k}" for k in range(1, 8)),
    *(f"E{k}" for k in range(1, 10)),
    *(f"I{k}" for k in range(1, 11)),
    "G",
}


def rows_named_in(path):
    """The rows that `pytest.mark.behaviour(...)` names in a file."""
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "behaviour"
    }


def test_every_row_of_the_transform_is_shown_by_a_test():
    named = set().union(*map(rows_named_in, Path(__file__).parent.rglob("test_*.py")))

    assert ROWS - named == set()
