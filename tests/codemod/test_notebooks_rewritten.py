"""Notebooks: their cells are rewritten one by one, and nothing else in the file changes."""

import json
import os
import subprocess
import sys

import pytest
from migrated import SRC, migrate, rewritten
from notebook_cases import CELLS, notebook

from virtual_devices import xla_flags

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
    used = CELLS[0].replace("import functools\n", "").removesuffix("\nfrom jax import pmap")
    without = "    state = jax.tree.map(lambda x: x[0], state)\n    batch = batch[0]\n"
    assert without in imports
    head, _, tail = imports.replace(without, "").partition("    return ")
    assert used.startswith(head)
    assert used.endswith(tail.partition("\n    )\n")[2])
    assert train.startswith("#@title")
    assert "step = jax.jit(\n    lambda *args: jax.shard_map(\n" in train
    assert "\n)  # é\n" in train
    assert train.endswith(
        "%time state, metrics = step(STATE, ROWS)\n" + train.split("\n")[-2] + "\n"
    )
    assert mapped.startswith("%%time\n@jax.jit\ndef f(x):\n    mesh = jax.make_mesh(\n")
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


TRAINING = [
    "import jax\nimport numpy as np\n%matplotlib inline",
    "def train_step(w, batch):\n"
    "    g = jax.lax.pmean((w - batch).mean(0), 'batch')\n"
    "    return w - 0.1 * g, jax.lax.pmean(g.sum(), 'batch')\n\n"
    "p_step = jax.pmap(train_step, axis_name='batch')",
    "n = jax.local_device_count()\n"
    "w = jax.device_put_replicated(np.zeros(3, np.float32), jax.local_devices())\n"
    "xs = np.arange(48, dtype=np.float32).reshape(16, 3)",
    "for _ in range(3):\n"
    "    w, loss = p_step(w, xs.reshape((n, -1) + xs.shape[1:]))\n"
    "    print(float(loss[0]))",
    "w[0]",
]


def training(*more):
    """The bytes of a notebook that trains, with further cells."""
    cells = [
        {
            "cell_type": "code",
            "execution_count": number,
            "metadata": {"id": f"c{number}"},
            "outputs": [{"output_type": "stream", "text": ["loss[0]\n"]}],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate([*TRAINING, *more])
    ]
    whole = {"nbformat": 4, "nbformat_minor": 0, "metadata": {}, "cells": cells}
    return (json.dumps(whole, indent=1) + "\n").encode()


def test_cells_are_one_program_in_the_global_style(tmp_path):
    before = training()
    after, _ = rewritten(tmp_path, before, "a.ipynb", style="global")
    imports, made, placed, loop, shown = cells_of(after)
    assert imports == TRAINING[0]
    assert "in_specs=(jax.P(), jax.P('batch'))," in made
    replicated = "jax.device_put(np.zeros(3, np.float32), jax.NamedSharding(mesh, jax.P()))"
    assert placed == f"w = {replicated}\n{TRAINING[2].splitlines()[-1]}"
    assert loop == "for _ in range(3):\n    w, loss = p_step(w, xs)\n    print(float(loss))"
    assert shown == "w"
    # All but the code of the cells keeps its bytes.
    whole = json.loads(before)
    for cell, new in zip(whole["cells"], json.loads(after)["cells"], strict=True):
        cell["source"] = new["source"]
    assert after.decode() == json.dumps(whole, indent=1) + "\n"


def test_a_second_run_in_the_global_style_changes_nothing(tmp_path):
    after, _ = rewritten(tmp_path, training(), "a.ipynb", style="global")
    assert rewritten(tmp_path, after, "a.ipynb", style="global") == (after, ())


@pytest.mark.parametrize(
    "hidden",
    ["%time w, loss = p_step(w, 1)", "!echo {w}", "!echo $w", "w = !ls", "w = (", "w?"],
)
def test_a_line_that_is_not_python_keeps_what_it_uses_stacked(tmp_path, hidden):
    before = training(hidden)
    after, _ = rewritten(tmp_path, before, "a.ipynb", style="global")
    assert rewritten(tmp_path, before, "a.ipynb", style="stacked")[0] == after
    (stay,) = migrate([str(tmp_path / "a.ipynb")]).stays
    assert stay.reason == "a line that is not Python uses w (cell 6:1)"


@pytest.mark.parametrize("command", ["!pip install w", "%pip install w", "%cd w"])
def test_a_word_of_a_command_is_no_name_of_the_program(tmp_path, command):
    after, _ = rewritten(tmp_path, training(command), "a.ipynb", style="global")
    assert "in_specs=(jax.P(), jax.P('batch'))," in cells_of(after)[1]


def test_an_import_that_a_magic_uses_stays(tmp_path):
    text = "import functools\nimport jax\n"
    cells = [
        text + "f = functools.partial(jax.pmap, axis_name='i')(abs)",
        "%time functools.reduce(max, [1])",
    ]
    cells = [{"cell_type": "code", "source": cell} for cell in cells]
    after, _ = rewritten(tmp_path, json.dumps({"cells": cells}).encode(), "a.ipynb")
    assert "import functools" in cells_of(after)[0]


def test_state_that_goes_from_a_module_to_a_notebook_is_changed_in_both(tmp_path):
    (tmp_path / "train.py").write_text(
        "import jax\nimport numpy as np\n\n"
        "def make():\n"
        "    assert jax.device_count()\n"
        "    return jax.device_put_replicated(np.zeros(3), jax.local_devices())\n\n"
        "p_step = jax.pmap(lambda w: w + jax.lax.pmean(w, 'i'), axis_name='i')\n"
    )
    cells = ["import train\nw = train.make()", "w = train.p_step(w)\nprint(w[0].sum())"]
    cells = [{"cell_type": "code", "source": cell} for cell in cells]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    files = {file.path: file.after for file in migrate([str(tmp_path)]).changed}
    assert cells_of(files[str(tmp_path / "a.ipynb")])[1] == "w = train.p_step(w)\nprint(w.sum())"
    assert b"jax.P()" in files[str(tmp_path / "train.py")]


@pytest.mark.slow
def test_a_notebook_in_the_global_style_gives_the_same(tmp_path):
    (tmp_path / "a.ipynb").write_bytes(training())
    environment = {**os.environ, "PYTHONPATH": str(SRC), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = xla_flags()
    command = [sys.executable, "-m", "pmapx", "migrate", ".", "--write", "--verify"]
    done = subprocess.run(
        [*command, "--", sys.executable, "a.ipynb"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Verified: 1 verified, 0 different, 0 unverified." in done.stdout, done.stdout
    assert "jax.P()" in (tmp_path / "a.ipynb").read_text()
