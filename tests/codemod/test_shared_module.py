"""The module of ``--helpers``: one copy of what several migrated files need."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pmapx._src.codemod.migration import migrate
from pmapx._src.source.command_error import CommandError
from virtual_devices import xla_flags

SRC = Path(__file__).parents[2] / "src"
# Passed on, pmap becomes a function that is written into the program.
PASSED_ON = "import jax\n\ndef mapped(f, map_fn=jax.pmap):\n    return map_fn(f)\n"
COUNTED = """\
import jax
import jax.numpy as jnp

def total(x):
    n = jax.local_device_count()
    return jax.pmap(lambda y: jax.lax.psum(y, "batch"), axis_name="batch")(x.reshape(n, -1))
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write files into the current folder; each as it is after the migration."""
    monkeypatch.chdir(tmp_path)

    def make(files, helpers="sharding.py", **options):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        done = migrate(["."], helpers=helpers, **options)
        assert not done.left
        return {os.path.normpath(file.path): file.after.decode() for file in done.changed}

    return make


def defined(text):
    return [node.name for node in ast.parse(text).body if hasattr(node, "name")]


def test_a_function_is_in_the_module_and_not_in_the_files(project):
    after = project({"a.py": PASSED_ON, "b.py": PASSED_ON})
    for name in ("a.py", "b.py"):
        assert after[name].startswith("from sharding import map_over_devices\n\ndef mapped(")
        assert defined(after[name]) == ["mapped"]
    assert defined(after["sharding.py"])[-1] == "map_over_devices"
    assert after["sharding.py"].startswith('"""Meshes')
    assert "\n\nimport functools\n\nimport jax\n\n\ndef each_leaf(" in after["sharding.py"]


@pytest.mark.parametrize(
    ("imported", "expected"),
    [
        ("from lab import model", "from lab.sharding import map_over_devices"),
        ("from .. import model", "from ..sharding import map_over_devices"),
        ("", "from lab.sharding import map_over_devices"),
    ],
)
def test_the_import_is_absolute_or_relative_as_the_package_does(project, imported, expected):
    after = project(
        {
            "lab/__init__.py": "",
            "lab/model.py": "import jax\n",
            "lab/run/__init__.py": "",
            "lab/run/train.py": f"{imported}\n{PASSED_ON}",
        },
        "lab/sharding.py",
    )
    assert f"\n{expected}\n" in after["lab/run/train.py"]


def test_a_package_below_another_folder_is_imported_as_its_files_are(project):
    after = project(
        {
            "src/lab/__init__.py": "",
            "src/lab/model.py": "import jax\n",
            "scripts/train.py": f"from lab import model\n{PASSED_ON}",
        },
        "src/lab/sharding.py",
    )
    assert "\nfrom lab.sharding import map_over_devices\n" in after["scripts/train.py"]


def test_a_mesh_that_several_files_need_is_made_once_at_its_first_use(project):
    after = project({"a.py": COUNTED, "b.py": COUNTED})
    assert after["sharding.py"].count("jax.make_mesh(") == 1
    assert "@functools.cache\ndef mesh():\n    return jax.make_mesh(\n" in after["sharding.py"]
    for name in ("a.py", "b.py"):
        assert "from sharding import mesh\n" in after[name]
        assert "mesh=mesh()," in after[name]
        assert "make_mesh" not in after[name]


def test_a_mesh_that_one_file_needs_stays_there(project):
    after = project({"a.py": COUNTED, "b.py": "import jax\n"})
    assert list(after) == ["a.py"]
    assert "mesh = jax.make_mesh(" in after["a.py"]


def test_without_the_option_each_file_has_its_own(project):
    after = project({"a.py": COUNTED, "b.py": COUNTED}, helpers=None)
    assert sorted(after) == ["a.py", "b.py"]
    assert all("mesh = jax.make_mesh(" in text for text in after.values())


def test_meshes_over_several_axes_have_names_of_their_own(project):
    other = COUNTED.replace("batch", "chain")
    after = project({"a.py": COUNTED, "b.py": COUNTED, "c.py": other, "d.py": other})
    assert defined(after["sharding.py"]) == ["mesh", "chain_mesh"]
    assert "mesh=chain_mesh()," in after["c.py"]


def test_a_file_with_another_mesh_imports_it_under_another_name(project):
    taken = COUNTED + "\ndef other(mesh):\n    return mesh\n"
    after = project({"a.py": COUNTED, "b.py": taken})
    assert "from sharding import mesh as batch_mesh\n" in after["b.py"]
    assert "mesh=batch_mesh()," in after["b.py"]


def test_a_module_that_holds_other_code_is_extended(project):
    own = '"""Ours."""\nimport jax\n\nmesh = "ours"\n\ndef map_over_devices():\n    pass\n'
    files = {"a.py": COUNTED + PASSED_ON, "b.py": COUNTED, "sharding.py": own}
    after = project(files)
    assert after["sharding.py"].startswith(own.replace("import", "import functools\n\nimport"))
    assert defined(after["sharding.py"])[:2] == ["map_over_devices", "batch_mesh"]
    expected = "from sharding import batch_mesh, map_over_devices2 as map_over_devices\n"
    assert expected in after["a.py"]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ('"""Ours."""\n', '"""Ours."""\n\nimport functools\n\nimport jax\n\n\n@'),
        ("x = 1\n", "import functools\n\nimport jax\n\nx = 1\n\n\n@"),
        ("import os\n", "import functools\nimport os\nimport jax\n\n\n@"),
        (
            "from __future__ import annotations\nimport jax\nx = 1\n",
            "from __future__ import annotations\nimport functools\n\nimport jax\nx = 1\n",
        ),
    ],
)
def test_imports_of_an_extended_module_stand_at_its_top(project, own, expected):
    after = project({"a.py": COUNTED, "b.py": COUNTED, "sharding.py": own})
    assert after["sharding.py"].startswith(expected)


def test_what_an_earlier_run_wrote_is_used_again(project, tmp_path):
    for name, text in project({"a.py": COUNTED + PASSED_ON, "b.py": COUNTED}).items():
        (tmp_path / name).write_text(text)
    again = project({"c.py": COUNTED + PASSED_ON})
    assert list(again) == ["c.py"]
    assert "from sharding import map_over_devices, mesh\n" in again["c.py"]


def test_maps_in_several_manners_are_functions_of_several_names(project):
    nested = "import jax\n\ndef f(x, axis=0):\n"
    nested += "    return jax.pmap(jax.pmap(abs, 'j', in_axes=axis), 'i', in_axes=axis)(x)\n"
    after = project({"a.py": PASSED_ON, "b.py": nested})
    assert "from sharding import map_over_devices\n" in after["a.py"]
    assert "from sharding import map_over_devices2 as map_over_devices\n" in after["b.py"]
    assert {"on_each_device", "on_each_device2"} <= set(defined(after["sharding.py"]))


def test_a_module_with_a_pmap_of_its_own_needs_no_import(project):
    after = project({"a.py": PASSED_ON, "sharding.py": PASSED_ON})
    assert "from sharding" not in after["sharding.py"]
    assert defined(after["sharding.py"]).count("map_over_devices") == 1
    assert "from sharding import map_over_devices\n" in after["a.py"]


@pytest.mark.parametrize(
    ("files", "helpers", "message"),
    [
        ({"a.py": PASSED_ON}, "../sharding.py", "outside the project"),
        ({"a.py": PASSED_ON}, "sharding.txt", "is no module"),
        ({"a.py": PASSED_ON}, "my-sharding.py", "is no module"),
        ({"a.py": PASSED_ON}, "lab/sharding.py", "no such file or directory"),
        ({"a.py": PASSED_ON, "sharding.py": "def f(:\n"}, "sharding.py", "cannot be read"),
        ({"x/a.py": PASSED_ON, "y/b.py": ""}, "y/sharding.py", "a file below ./x"),
        ({"a.py": PASSED_ON, "sharding.py": "import a\n"}, "sharding.py", "which imports it"),
        ({"a.py": PASSED_ON, "sharding.py": "functools = 1\n"}, "sharding.py", "something else"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_fix(project, files, helpers, message):
    with pytest.raises(CommandError, match=message):
        project(files, helpers)


def test_a_notebook_that_cannot_import_the_module_has_its_own_function(project, tmp_path):
    cell = '{"cells": [{"cell_type": "code", "source": "import jax\\nf = use(jax.pmap)"}]}'
    after = project({"x/a.ipynb": cell, "y/b.py": PASSED_ON}, "y/sharding.py")
    assert "def map_over_devices" in after["x/a.ipynb"]
    assert "from sharding import map_over_devices\n" in after["y/b.py"]


STEP = """\
import jax
import numpy as np
{}

def step(w, x):
    return w - 0.1 * jax.lax.pmean((w - x).mean(0), "batch")

def fit(xs):
    n = jax.local_device_count()
    p_step = jax.pmap(step, axis_name="batch")
    w = jax.device_put_replicated(np.zeros(3, np.float32), jax.local_devices())
    for _ in range(2):
        w = p_step(w, xs.reshape((n, -1) + xs.shape[1:]))
        print(w)
    return w[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["shard_map", "jit"])
def test_a_package_with_a_shared_module_gives_the_same_and_starts_nothing_at_import(tmp_path, to):
    files = {
        "lab/__init__.py": "",
        "lab/train.py": STEP.format(""),
        "lab/evaluate.py": STEP.format("last = jax.pmap(abs, axis_name='batch', in_axes=-1)\n"),
        "main.py": "import numpy as np\nfrom lab import evaluate, train\n"
        "xs = np.arange(48, dtype=np.float32).reshape(16, 3)\n"
        "print(train.fit(xs), evaluate.fit(xs), evaluate.last(np.ones((3, 8))))\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(SRC), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = xla_flags()
    command = [sys.executable, "-m", "pmapx", "migrate", ".", "--helpers", "lab/sharding.py"]
    command += ["--to", to, "--write", "--verify", "--", sys.executable, "main.py"]
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=300, check=False, **run)
    assert "Verified: 3 verified, 0 different, 0 unverified." in done.stdout, done.stdout
    assert "def mesh" in (tmp_path / "lab/sharding.py").read_text()
    assert ("jax.shard_map" in (tmp_path / "lab/train.py").read_text()) == (to == "shard_map")
    # JAX refuses the option once its backend is initialized.
    text = "import jax, lab.evaluate, lab.train; jax.config.update('jax_num_cpu_devices', 2)"
    done = subprocess.run([sys.executable, "-c", text], timeout=120, check=False, **run)
    assert done.returncode == 0, done.stderr
