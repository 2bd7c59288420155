"""Maps over real processes (E1, E3, E4, E5): the cases of map_cases.py, run on 2 x 2 devices."""

import ast
from pathlib import Path

import pytest

CASES = [
    node.name
    for node in ast.parse((Path(__file__).parent / "map_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


def cases_about(*words):
    return [case for case in CASES if any(word in case for word in words)]


SPECIAL = cases_about("global_arrays", "lowered", "donated")


@pytest.mark.behaviour("E1")
@pytest.mark.parametrize("case", [case for case in CASES if case not in SPECIAL])
def test_a_map_over_two_processes(case, outcomes):
    outcomes("map_cases", case)


@pytest.mark.behaviour("E3")
@pytest.mark.parametrize("case", cases_about("lowered"))
def test_stages_over_two_processes(case, outcomes):
    outcomes("map_cases", case)


@pytest.mark.behaviour("E4")
@pytest.mark.parametrize("case", cases_about("global_arrays"))
def test_global_arrays_over_two_processes(case, outcomes):
    outcomes("map_cases", case)


@pytest.mark.behaviour("E5")
@pytest.mark.parametrize("case", cases_about("donated"))
def test_donation_over_two_processes(case, outcomes):
    outcomes("map_cases", case)


@pytest.mark.slow
@pytest.mark.behaviour("E1")
@pytest.mark.parametrize("case", CASES)
def test_a_map_over_four_processes_of_one_device(case, outcomes):
    if case in cases_about("a_pmap", "must_move", "devices_in_an_order"):
        pytest.skip("needs two devices in a process")
    outcomes("map_cases", case, processes=4, devices=1)


@pytest.mark.slow
@pytest.mark.behaviour("E1")
@pytest.mark.parametrize("case", CASES)
def test_the_public_twin_over_two_processes(case, outcomes):
    outcomes("map_cases", case, PMAPX_PUBLIC_ONLY="1")
