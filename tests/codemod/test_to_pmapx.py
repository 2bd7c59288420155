"""The small step: the same code with pmapx's functions."""

import json

import pytest
from migrated import assert_same, run_all
from notebook_cases import CELLS, code_of, notebook
from pmap_programs import HEAD, PROGRAMS

from pmapx._src.codemod.migration import migrate


def changed_notebook(folder, data):
    path = folder / "a.ipynb"
    path.write_bytes(data)
    (file,) = migrate([str(path)], to="pmapx").files
    return file.after, file.outcomes


def changed(folder, text, name="program.py"):
    path = folder / name
    path.write_text(text)
    files = [file for file in migrate([str(path)], to="pmapx").files if file.path == str(path)]
    return (files[0].after.decode(), files[0].outcomes) if files else (text, ())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_step")
    before, after = folder / "old", folder / "new"
    for each in (before, after):
        each.mkdir()
    for name, text in PROGRAMS.items():
        new, _ = changed(before, HEAD + text, f"{name}.py")
        (after / f"{name}.py").write_text(new)
    cells, _ = changed_notebook(folder, notebook())
    (before / "a_notebook.py").write_text(code_of(notebook()))
    (after / "a_notebook.py").write_text(code_of(cells))
    return run_all(before, "before"), run_all(after, "small step")


@pytest.mark.parametrize("name", [*PROGRAMS, "a_notebook"])
def test_the_small_step_gives_the_same_to_the_bit(runs, name):
    assert_same(*(run[name] for run in runs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_use_is_pmapxs_and_a_second_run_changes_nothing(tmp_path, name):
    once, outcomes = changed(tmp_path, HEAD + PROGRAMS[name])
    assert [each for each in outcomes if each.reason] == []
    assert "jax.pmap" not in once
    assert "jax.device_put_" not in once
    assert changed(tmp_path, once) == (once, ())


TEXTS = {
    "an attribute": ("import jax\nf = jax.pmap(abs)\n", "import pmapx\nf = pmapx.pmap(abs)\n"),
    "jax is still used": (
        "import jax\nf = jax.pmap(jax.nn.relu)\n",
        "import jax\nimport pmapx\nf = pmapx.pmap(jax.nn.relu)\n",
    ),
    "an imported name": (
        "from jax import jit, pmap as pm, vmap  # maps\nf = pm(abs)\n",
        "from jax import jit, vmap  # maps\nfrom pmapx import pmap as pm\nf = pm(abs)\n",
    ),
    "the last of several lines": (
        "from jax import (\n    jit,\n    pmap,\n)\nf = pmap(abs)\n",
        "from jax import (\n    jit,\n)\nfrom pmapx import pmap\nf = pmap(abs)\n",
    ),
    "an import that ends the file": (
        "import jax\nf = jax.pmap(abs)\nimport jax",
        "import pmapx\nf = pmapx.pmap(abs)\n",
    ),
    "a value": (
        "import jax\nrun(map_fn=jax.pmap if many else jax.vmap)\n",
        "import jax\nimport pmapx\nrun(map_fn=pmapx.pmap if many else jax.vmap)\n",
    ),
    "another name for it": (
        "import jax\npm = jax.pmap\nf, g = pm(abs), jax.jit(abs)\n",
        "import jax\nimport pmapx\npm = pmapx.pmap\nf, g = pm(abs), jax.jit(abs)\n",
    ),
    "flax": (
        "from flax import jax_utils\nfrom flax.training.common_utils import shard\nimport jax\n"
        "step = jax.pmap(jax.nn.relu)\nstate = jax_utils.replicate(1.0)\n"
        "for batch in jax_utils.prefetch_to_device(map(shard, data), 2):\n"
        "    state = step(state)\nlast = jax_utils.unreplicate(state)\n",
        "from pmapx import shard_batch as shard\nimport jax\nimport pmapx\n"
        "step = pmapx.pmap(jax.nn.relu)\nstate = pmapx.replicate(1.0)\n"
        "for batch in pmapx.prefetch(map(shard, data), 2):\n"
        "    state = step(state)\nlast = pmapx.unreplicate(state)\n",
    ),
    "first rows": (
        "import jax\ndef g(x):\n    return {'a': x}, x + 1\nf = jax.pmap(g)\ntree, rows = f(x)\n"
        "y = jax.tree.map(lambda x: x[0], tree), rows[0], tree['a'][0] + 1, other[0], rows[1]\n",
        "import pmapx\ndef g(x):\n    return {'a': x}, x + 1\nf = pmapx.pmap(g)\n"
        "tree, rows = f(x)\ny = pmapx.unreplicate(tree), pmapx.unreplicate(rows), "
        "pmapx.unreplicate(tree['a']) + 1, other[0], rows[1]\n",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_of_the_small_step(tmp_path, case):
    before, after = TEXTS[case]
    assert changed(tmp_path, before)[0] == after


LEFT = {
    "an option that ours has not": (
        "from flax.jax_utils import prefetch_to_device as pre\nimport jax\njax.pmap\n"
        "x = pre(data, 2, axis_name='i')\n",
        "no option axis_name",
    ),
    "the name is taken": ("import jax\npmapx = 1\nf = jax.pmap(abs)\n", "something else"),
    "looked after": (
        "import jax\ntry:\n    put = jax.device_put_replicated\nexcept AttributeError:\n"
        "    put = None\n",
        "its absence",
    ),
    "compared": ("import jax\nis_it = f is jax.pmap\n", "compared"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_ours_do_not_take_is_left_with_a_reason(tmp_path, case):
    text, reason = LEFT[case]
    _, outcomes = changed(tmp_path, text)
    assert [each.reason for each in outcomes if reason in each.reason], outcomes


def test_several_processes_and_nested_maps_are_no_obstacle(tmp_path):
    text = "import jax\njax.distributed.initialize()\nf = jax.pmap(jax.pmap(abs), axis_name='i')\n"
    after, outcomes = changed(tmp_path, text)
    assert "f = pmapx.pmap(pmapx.pmap(abs), axis_name='i')" in after
    assert not any(each.reason for each in outcomes)


def test_a_notebook_s_cells_change_and_nothing_else_does(tmp_path):
    after, outcomes = changed_notebook(tmp_path, notebook())
    assert [(each.where, each.reason) for each in outcomes] == [
        ("cell 3:2:8", ""),
        ("cell 4:2:20", ""),
        ("cell 4:7:13", ""),
        ("cell 6:1:44", ""),
    ]
    before, whole = json.loads(notebook()), json.loads(after)
    cells = ["".join(cell["source"]) for cell in whole["cells"][1:]]
    for old, new in zip(before["cells"], whole["cells"], strict=True):
        new["source"] = old["source"]
    assert whole == before
    assert cells[0].startswith("!pip install jax\n%matplotlib inline\n")
    assert "import jax, jax.numpy as jnp, numpy as np\nimport pmapx\n" in cells[0]
    assert cells[0].endswith("from pmapx import pmap")
    assert cells[2].startswith("%%time\n@functools.partial(pmapx.pmap, axis_name='i')\n")
    assert (cells[1], cells[3]) == (CELLS[1], CELLS[3])


NOTEBOOKS = {
    "imports that end their cell": (
        ["import jax", "%%time\nf = jax.pmap(abs)"],
        ["import jax\nimport pmapx", "%%time\nf = pmapx.pmap(abs)"],
    ),
    "no import, below a magic of the cell": (
        ["%%bash\nls", "%%time\nx = 1\nf = __import__('a')", "import jax\nf = jax.pmap(abs)"],
        [
            "%%bash\nls",
            "%%time\nimport pmapx\nx = 1\nf = __import__('a')",
            "import jax\nf = pmapx.pmap(abs)",
        ],
    ),
    "an import that a magic line uses": (
        ["import jax\nf = jax.pmap(abs)\n%time f(jax.numpy.ones(8))"],
        ["import jax\nimport pmapx\nf = pmapx.pmap(abs)\n%time f(jax.numpy.ones(8))"],
    ),
    "the last line of a cell goes": (
        ["x = 1\nfrom jax import pmap", "f = pmap(abs)"],
        ["x = 1\nfrom pmapx import pmap", "f = pmap(abs)"],
    ),
}


@pytest.mark.parametrize("case", NOTEBOOKS)
def test_the_cells_of_the_small_step(tmp_path, case):
    before, expected = NOTEBOOKS[case]
    cells = [{"cell_type": "code", "source": source} for source in before]
    after, outcomes = changed_notebook(tmp_path, json.dumps({"cells": cells}).encode())
    assert [cell["source"] for cell in json.loads(after)["cells"]] == expected
    assert not any(each.reason for each in outcomes)
    assert not migrate([str(tmp_path / "a.ipynb")], to="pmapx").left
