"""Results of maps over processes are arrays like any other (E2): the cases of result_cases.py."""

import ast
from pathlib import Path

import pytest

CASES = [
    node.name
    for node in ast.parse((Path(__file__).parent / "result_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


@pytest.mark.behaviour("E2")
@pytest.mark.parametrize("case", CASES)
def test_a_result_of_a_map_over_two_processes(case, outcomes):
    outcomes("result_cases", case)


@pytest.mark.slow
@pytest.mark.behaviour("E2")
@pytest.mark.parametrize("case", CASES)
def test_a_result_of_a_map_over_three_processes_of_one_device(case, outcomes):
    outcomes("result_cases", case, processes=3, devices=1)


@pytest.mark.slow
@pytest.mark.behaviour("E2")
@pytest.mark.parametrize("case", CASES)
def test_a_result_by_public_means(case, outcomes):
    outcomes("result_cases", case, PMAPX_PUBLIC_ONLY="1")
