"""Files of a tree that are one program: what one script does is not what another does."""

import json

import pytest

from pmapx._src.codemod.migration import migrate

SHARED = """\
import jax

def mapped(f):
    assert jax.device_count()
    return jax.pmap(f, axis_name="i")

def size():
    return 1
"""
SCRIPT = """\
import jax
{imports}

def main(x):
    step = jax.pmap(lambda y: jax.lax.pmean(y, "i"), axis_name="i")
    n = jax.local_device_count()
    return step(x.reshape(n, -1))

if __name__ == "__main__":
    main(jax.numpy.ones(64))
"""
PROCESSES = "share = 64 // jax.process_count()"


def multi_process(folder, files):
    """Migrate a tree; the files that are written as parts of a multi-process program."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = migrate([str(folder)])
    assert not done.left
    return {
        file.path.removeprefix(f"{folder}/")
        for file in done.changed
        if b"multihost_utils" in file.after or b"host_local_shard_map(" in file.after
    }


def script(imports=""):
    return SCRIPT.format(imports=imports)


def test_a_script_of_several_processes_does_not_make_another_one_so(tmp_path):
    files = {"a.py": script(PROCESSES), "b.py": script()}
    assert multi_process(tmp_path, files) == {"a.py"}


def test_a_file_that_a_script_imports_makes_it_multi_process(tmp_path):
    files = {
        "a.py": script("import data"),
        "b.py": script(),
        "data.py": "import jax\ndef load(xs):\n    return xs[jax.process_index() :: 2]\n",
    }
    assert multi_process(tmp_path, files) == {"a.py"}


def test_a_module_with_maps_is_multi_process_if_one_of_its_users_is(tmp_path):
    use = "from shared import mapped\nstep = mapped(abs)"
    files = {"shared.py": SHARED, "a.py": script(f"{use}\n{PROCESSES}"), "b.py": script()}
    assert multi_process(tmp_path, files) == {"shared.py", "a.py"}


@pytest.mark.parametrize(
    "use",
    [
        "from shared import mapped\nstep = mapped(abs)",
        "import shared\nstep = shared.mapped(abs)",
        "from shared import *\nstep = mapped(abs)",
    ],
)
def test_files_that_share_maps_agree(tmp_path, use):
    files = {"shared.py": SHARED, "a.py": script(f"{use}\n{PROCESSES}"), "b.py": script(use)}
    assert multi_process(tmp_path, files) == {"shared.py", "a.py", "b.py"}


@pytest.mark.parametrize("use", ["from shared import size", "import shared\nn = shared.size()"])
def test_a_module_of_which_no_map_is_used_does_not_join_programs(tmp_path, use):
    mapped = "from shared import mapped\nstep = mapped(abs)"
    files = {"shared.py": SHARED, "a.py": script(f"{use}\n{PROCESSES}"), "b.py": script(mapped)}
    assert multi_process(tmp_path, files) == {"a.py"}


def test_a_library_that_no_script_uses_may_be_part_of_any_program(tmp_path):
    files = {"lab/__init__.py": "", "lab/maps.py": SHARED, "a.py": script(PROCESSES)}
    assert multi_process(tmp_path, files) == {"lab/maps.py", "a.py"}


def test_a_script_that_chooses_modules_while_it_runs_may_use_any(tmp_path):
    chosen = "import importlib\nlib = importlib.import_module(input())"
    files = {"a.py": script(PROCESSES), "b.py": script(chosen), "c.py": script()}
    assert multi_process(tmp_path, files) == {"a.py", "b.py"}


def test_a_notebook_is_a_program_with_what_it_imports(tmp_path):
    cell = {"cell_type": "code", "source": f"from shared import mapped\n{PROCESSES}"}
    cell["source"] = f"import jax\n{cell['source']}\nstep = mapped(abs)"
    files = {
        "shared.py": SHARED,
        "a.ipynb": json.dumps({"cells": [cell]}),
        "b.py": script(),
    }
    assert multi_process(tmp_path, files) == {"shared.py"}


TRAIN = """\
import jax
import numpy as np

def train_step(state, batch):
    loss = (state * batch).mean()
    return state - jax.lax.pmean(loss, "i"), loss

def train(state, batch):
    step = jax.pmap(train_step, axis_name="i", in_axes=(None, 0), out_axes=(None, 0))
    return step(state, np.ones((jax.local_device_count(), 2)))
"""


@pytest.mark.parametrize(
    ("main", "is_edited"),
    [
        ("import train\ntrain.train(1.0, None)\n", True),
        ("import train\nimport jax\ntrain.train(*jax.jit(train.train_step)(1.0, None))\n", False),
        ("import launch\nimport jax\nlaunch.train.train_step(*jax.numpy.ones(2))\n", False),
        ("import train\nimport jax\ngetattr(train, 'train_step')(*jax.numpy.ones(2))\n", False),
    ],
)
def test_a_function_of_another_program_with_the_same_name_is_another(tmp_path, main, is_edited):
    other = "import jax\nimport train\njax.pmap(train.train_step, axis_name='i')(1.0, 2.0)\n"
    for name, text in {"a": main, "b": other}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(TRAIN)
        (tmp_path / name / "launch.py").write_text("import jax\nimport train\n")
        (tmp_path / name / "main.py").write_text(text)
    after = {file.path: file.after.decode() for file in migrate([str(tmp_path)]).changed}
    assert ("batch = batch[0]" in after[str(tmp_path / "a" / "train.py")]) is is_edited
    assert "batch = batch[0]" not in after[str(tmp_path / "b" / "train.py")]


TRAINER = """\
import jax
import jax.numpy as jnp
from flax import jax_utils

def train_step(params, batch):
    grads = jax.lax.pmean(jax.grad(lambda p: jnp.mean(batch * p))(params), "batch")
    return params - 0.1 * grads

def train(batches):
    assert jax.local_device_count()
    p_step = jax.pmap(train_step, axis_name="batch")
    params = jax_utils.replicate(jnp.ones(3))
    for batch in batches:
        params = p_step(params, batch)
    return params, 1
"""


def test_a_script_that_calls_a_trainer_is_read_though_many_files_import_it(tmp_path):
    # Longer than the script, and before it: without it, other code might take what is returned.
    other = "import trainer\n" + "x = 1  # nothing of interest to a reader\n" * 400
    for number in range(60):
        (tmp_path / f"a{number}.py").write_text(other)
    (tmp_path / "main.py").write_text(
        "import trainer\n\nparams, _ = trainer.train([])\nprint(params[0])\n"
    )
    (tmp_path / "trainer.py").write_text(TRAINER)
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"\n    return params, 1\n" in after["trainer.py"]
    assert b"With the leading device axis" not in after["trainer.py"]
    assert b"print(params)\n" in after["main.py"]


TABLE = """\
import trainer

TRAINERS = {"plain": trainer.train}

def main(name):
    trainer.train([])
    return TRAINERS
"""


def test_what_is_returned_is_stacked_for_unknown_code_if_no_call_that_is_seen_uses_it(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "main.py").write_text(TABLE)
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"in_specs=(jax.P(), jax.P('batch'))" in after["trainer.py"].replace(b'"', b"'")
    assert (
        b"# With the leading device axis that the caller of train expects." in after["trainer.py"]
    )


def test_what_is_returned_keeps_its_axis_if_known_and_unknown_code_take_it(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "main.py").write_text(
        TABLE.replace(
            "    trainer.train([])", "    params, _ = trainer.train([])\n    print(params[0])"
        )
    )
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"With the leading device axis" not in after["trainer.py"]
    assert b"in_specs=(jax.P()" not in after["trainer.py"]
    assert "main.py" not in after


@pytest.mark.parametrize("returned", ["params, 1", "params"])
def test_what_a_script_returns_of_a_trainer_is_stacked_once_where_the_trainer_returns_it(
    tmp_path, returned
):
    (tmp_path / "trainer.py").write_text(TRAINER.replace("params, 1", returned))
    (tmp_path / "main.py").write_text(
        "import trainer\nfrom absl import app\n\nTRAINERS = {'plain': trainer.train}\n\n"
        "def main(argv):\n    return trainer.train([])\n\napp.run(main)\n"
    )
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"in_specs=(jax.P(), jax.P('batch'))" in after["trainer.py"].replace(b'"', b"'")
    assert after["trainer.py"].count(b"that the caller of train expects.") == 1
    assert "main.py" not in after


FIRST = """\
import settings, trainer
import table

def main(name):
    table.chosen(name)([])
"""
CONFIG = """\
import trainer

def get_config():
    config = Config()
    config.data.train = Config()
    config.data.train.size = 8
    return config, trainer
"""


def test_a_table_of_trainers_in_a_file_without_jax_is_read_before_the_script_that_uses_it(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "main.py").write_text(FIRST)
    (tmp_path / "settings.py").write_text(CONFIG)
    for number in range(60):
        # As many as are read for what they may pass on.
        (tmp_path / f"a{number}.py").write_text(f"def f{number}(x):\n    return x\n")
    others = "".join(f"import a{number}\nprint(a{number}.f{number}(1))\n" for number in range(60))
    (tmp_path / "b.py").write_text(f"import jax, trainer\n{others}")
    (tmp_path / "table.py").write_text(
        "import trainer\n\nTRAINERS = {'plain': trainer.train}\n\n"
        "def chosen(name):\n    return TRAINERS[name]\n"
    )
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"\n    return params, 1\n" in after["trainer.py"]
    assert b"in_specs=(jax.P(), jax.P('batch'))" in after["trainer.py"].replace(b'"', b"'")


def test_trainers_whose_results_a_script_drops_do_not_hold_together(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    local = TRAINER.replace(
        'jax.lax.pmean(jax.grad(lambda p: jnp.mean(batch * p))(params), "batch")', "batch"
    )
    (tmp_path / "local.py").write_text(local)
    (tmp_path / "main.py").write_text(
        "import local, trainer\n\nTRAINERS = {'plain': trainer.train, 'local': local.train}\n\n"
        "def main(name):\n    TRAINERS[name]([])\n"
    )
    after = {file.path.rpartition("/")[2]: file.after for file in migrate([str(tmp_path)]).changed}
    assert b"\n    return params, 1\n" in after["trainer.py"]
    assert b"in_specs=(jax.P(), jax.P('batch'))" in after["trainer.py"].replace(b'"', b"'")
    assert b"in_specs=(jax.P()," not in after["local.py"]
