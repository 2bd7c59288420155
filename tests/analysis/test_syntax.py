"""Trees are walked as the ast module walks them, and parents are found from a node's line."""

import ast
from pathlib import Path

import pytest

from pmapx._src.analysis import syntax
from pmapx._src.analysis.project import Project

SOURCE = """
import jax


@jax.pmap
def f(x, y=(1, 2)): return x; z = 3


class A:
    @staticmethod
    def g(xs, *args: int, **kwargs):
        with open(
            "a"
        ) as file, jax.set_mesh(m): pass
        return [lambda a: a[0] for x in xs if x
                for y in x]


try:
    a = 1; b = {**a}
except (ValueError, TypeError) as error:
    match a:
        case [1, *rest] if rest:
            del b
"""


@pytest.mark.parametrize("text", [SOURCE, Path(__file__).read_text()])
def test_nodes_come_in_the_order_of_ast_walk(text: str) -> None:
    tree = ast.parse(text)
    assert syntax.walk(tree) == list(ast.walk(tree))
    for node in ast.walk(tree):
        assert list(syntax.children(node)) == list(ast.iter_child_nodes(node))


def test_all_statements_are_given() -> None:
    tree = ast.parse(SOURCE)
    found = {node for node in syntax.statements(tree) if isinstance(node, ast.stmt)}
    assert found == {node for node in ast.walk(tree) if isinstance(node, ast.stmt)}


@pytest.mark.parametrize("is_partial", [False, True])
def test_parents_are_found_from_the_line_of_a_node(is_partial: bool) -> None:
    project = Project(["a.py"], is_partial=is_partial)
    module = project.module("a.py", data=SOURCE.encode())
    assert module is not None
    tree = module.source.tree
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if hasattr(node, "lineno"):
                assert module.parent(node) is parent
