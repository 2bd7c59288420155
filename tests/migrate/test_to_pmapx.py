"""The small step: the same code with pmapx's functions."""

import pytest

pytest.importorskip("libcst", reason="needs pmapx[tools]")

from migrated import assert_same, run_all
from pmap_programs import HEAD, PROGRAMS

from pmapx.migrate.migration import migrate


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
    return run_all(before, "before"), run_all(after, "small step")


@pytest.mark.parametrize("name", PROGRAMS)
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
