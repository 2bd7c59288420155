"""Notebooks: their cells are rewritten one by one, and nothing else in the file changes."""

import json

import pytest
from migrated import rewritten
from notebook_cases import CELLS, notebook

MANNERS = {
    "indented": {},
    "ascii": {"ensure_ascii": True},
    "one line": {"indent": None},
    "tight": {"indent": None, "separators": (",", ":")},
    "deep": {"indent": 4},
}


def cells_of(data):
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


@pytest.mark.parametrize("manner", MANNERS)
def test_only_the_code_of_cells_changes(tmp_path, manner):
    before = notebook(**MANNERS[manner])
    after, outcomes = rewritten(tmp_path, before, "a.ipynb")
    assert [each.reason for each in outcomes] == ["", ""]
    # What the cells are in the new file, put in the place of what they were, gives its bytes.
    whole = json.loads(before)
    for cell, new in zip(whole["cells"], json.loads(after)["cells"], strict=True):
        cell["source"] = new["source"]
    given = {"indent": 1, "ensure_ascii": False, **MANNERS[manner]}
    assert after.decode() == json.dumps(whole, **given) + "\n"


def test_cells_keep_their_magics_titles_and_broken_neighbours(tmp_path):
    after, _ = rewritten(tmp_path, notebook(), "a.ipynb")
    _, imports, train, mapped, broken, last = cells_of(after)
    used = CELLS[0].replace("import functools\n", "")
    assert imports == used.removesuffix("\nfrom jax import pmap")
    assert train.startswith("#@title")
    assert "step = jax.jit(\n    lambda *args: jax.shard_map(\n" in train
    assert "\n)  # é\n" in train
    assert train.endswith(
        "%time state, metrics = step(STATE, ROWS)\n" + train.split("\n")[-2] + "\n"
    )
    assert mapped.startswith("%%time\n@jax.jit\n@lambda function: lambda x: jax.shard_map(\n")
    assert broken == CELLS[3]
    assert last == CELLS[4]


def test_a_second_run_changes_nothing(tmp_path):
    after, _ = rewritten(tmp_path, notebook(), "a.ipynb")
    assert rewritten(tmp_path, after, "a.ipynb") == (after, ())


def test_functions_stand_below_a_magic_of_the_whole_cell(tmp_path):
    cell = {"cell_type": "code", "source": ["%%time\n", "import jax\n", "f = use(jax.pmap)"]}
    after, _ = rewritten(tmp_path, json.dumps({"cells": [cell]}).encode(), "a.ipynb")
    lines = cells_of(after)[0].split("\n")
    assert lines[:2] == ["%%time", "import jax"]
    assert lines[-1] == "f = use(map_over_devices)"


def test_a_notebook_of_the_third_format_is_rewritten(tmp_path):
    cell = {"cell_type": "code", "input": "import jax\nf = jax.pmap(abs)", "language": "python"}
    before = json.dumps({"worksheets": [{"cells": [cell]}], "nbformat": 3}).encode()
    after, _ = rewritten(tmp_path, before, "a.ipynb")
    source = json.loads(after)["worksheets"][0]["cells"][0]["input"]
    assert source.startswith("import jax\nf = jax.jit(\n")


def test_a_place_in_a_notebook_is_named_by_its_cell(tmp_path):
    _, outcomes = rewritten(tmp_path, notebook(), "a.ipynb")
    assert [each.where for each in outcomes] == ["cell 3:2:8", "cell 4:2:20"]
