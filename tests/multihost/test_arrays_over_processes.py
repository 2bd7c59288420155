"""Arrays of one row a device in several processes (F1 to F5): the cases of array_cases.py."""

import ast
from pathlib import Path

import pytest

CASES = [
    node.name
    for node in ast.parse((Path(__file__).parent / "array_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


@pytest.mark.behaviour("E9")
@pytest.mark.behaviour("F1")
@pytest.mark.parametrize("case", CASES)
def test_arrays_in_two_processes(case, outcomes):
    outcomes("array_cases", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_arrays_in_two_processes_by_public_means(case, outcomes):
    outcomes("array_cases", case, PMAPX_PUBLIC_ONLY="1")
