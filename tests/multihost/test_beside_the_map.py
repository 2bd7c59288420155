"""stitch, unstitch, barrier and checked calls in real processes (E6, E7)."""

import ast
from pathlib import Path

import pytest

CASES = [
    node.name
    for node in ast.parse((Path(__file__).parent / "beside_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


def cases_about(*words):
    return [case for case in CASES if any(word in case for word in words)]


@pytest.mark.behaviour("E6")
@pytest.mark.parametrize("case", cases_about("barrier"))
def test_a_barrier(case, outcomes):
    outcomes("beside_cases", case)


@pytest.mark.behaviour("E7")
@pytest.mark.parametrize("case", cases_about("stitch", "part"))
def test_a_global_batch_from_local_data(case, outcomes):
    outcomes("beside_cases", case)


@pytest.mark.parametrize("case", cases_about("replicas", "another", "all_still"))
def test_a_checked_call(case, outcomes):
    outcomes("beside_cases", case)
