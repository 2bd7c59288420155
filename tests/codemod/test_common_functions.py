"""A mesh that several files need, in a module that they import already."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pmapx._src.codemod.migration import migrate
from virtual_devices import xla_flags

SRC = Path(__file__).parents[2] / "src"
UTILS = """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="x")
def mean(x):
    return jax.lax.pmean(x, "x")


def sync(x):
    return mean(x)
"""
TRAINER = """\
import jax
import jax.numpy as jnp
from lab import utils


def total(x):
    n = jax.local_device_count()
    p_sum = jax.pmap(lambda y: jax.lax.psum(y, "batch"), axis_name="batch")
    return utils.sync(p_sum(x.reshape(n, -1)))
"""
TRAINERS = {"lab/a.py": TRAINER, "lab/b.py": TRAINER, "lab/c.py": TRAINER}
LAB = {"lab/__init__.py": "", "lab/utils.py": UTILS, **TRAINERS}


@pytest.fixture
def after(tmp_path):
    """Write files, and give each as it is after the migration."""

    def make(files, **options):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        done = migrate([str(tmp_path)], **options)
        assert not done.left
        return {os.path.relpath(file.path, tmp_path): file.after.decode() for file in done.changed}

    return make


def test_it_is_made_by_a_function_of_the_module_that_most_import(after):
    found = after(LAB)
    assert found["lab/utils.py"].count("jax.make_mesh(") == 1
    assert "\n\n\ndef device_mesh(axis_name):\n" in found["lab/utils.py"]
    assert 'mesh=device_mesh("x")' in found["lab/utils.py"]
    for name in TRAINERS:
        assert '    mesh = utils.device_mesh("batch")\n' in found[name]
        assert "make_mesh" not in found[name]
        assert found[name].count("import") == TRAINER.count("import")


def test_a_file_that_does_not_import_the_module_makes_its_own(after):
    alone = TRAINER.replace("from lab import utils\n", "").replace("utils.sync", "jnp.sum")
    found = after({**LAB, "lab/d.py": alone})
    assert "mesh = jax.make_mesh(" in found["lab/d.py"]
    assert "device_mesh" not in found["lab/d.py"]


def test_two_modules_have_it_where_no_file_imports_both(after):
    others = {f"labs/{name}.py": TRAINER.replace("lab ", "labs ") for name in "abc"}
    found = after({**LAB, "labs/__init__.py": "", "labs/utils.py": UTILS, **others})
    for name in ("lab", "labs"):
        assert "def device_mesh(" in found[f"{name}/utils.py"]
        assert 'mesh = utils.device_mesh("batch")\n' in found[f"{name}/c.py"]


@pytest.mark.parametrize(
    "changed",
    [
        {"lab/c.py": "", "lab/b.py": ""},
        {"lab/utils.py": UTILS + "\n\ndef device_mesh(): ...\n"},
        {"lab/utils.py": "import jax\n\n\ndef sync(x):\n    return x\n"},
        dict.fromkeys(TRAINERS, TRAINER + "\n\ndef other(utils):\n    return utils\n"),
    ],
    ids=["few files", "its name is taken", "it needs no mesh", "another meaning in a function"],
)
def test_each_file_makes_its_own_without_such_a_module(after, changed):
    found = after({**LAB, **changed})
    assert "mesh = jax.make_mesh(" in found["lab/a.py"]
    assert not any("device_mesh(" in found[name] for name in found if name in TRAINERS)


def test_code_at_the_top_level_makes_its_own_before_the_module_may_be_loaded(after):
    top = TRAINER.replace("def total(x):\n    n", "if True:\n    x = jnp.ones(8)\n    n")
    top = top.replace("    return ", "    y = ")
    found = after({**LAB, "lab/main.py": top})
    assert "mesh = jax.make_mesh(" in found["lab/main.py"]


METHODS = """\
import functools

import jax


class Model:
    @functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=0)
    def step(self, x):
        return jax.lax.pmean(x, "i")


def main(kind, x):
    INITIALIZE
    model = kind()
    print(model.step(x))
"""


def test_a_file_with_many_meshes_has_a_function_for_them(after):
    together = METHODS.replace("INITIALIZE", "jax.distributed.initialize()")
    found = after({"train.py": together})["train.py"]
    assert found.count("def device_mesh(axis_name):\n") == 1
    assert found.count("jax.sharding.Mesh(") == 1
    assert found.count('device_mesh("i")') == 3
    alone = after({"train.py": METHODS.replace("INITIALIZE", "pass")})["train.py"]
    assert "device_mesh" not in alone
    method = "    @functools.partial(jax.pmap, axis_name='i', static_broadcasted_argnums=0)\n"
    method += "    def step{}(self, x):\n        return jax.lax.pmean(x, 'i')\n"
    several = "import functools\nimport jax\nn = jax.device_count\nclass Model:\n"
    several = after({"train.py": several + "".join(map(method.format, range(3)))})["train.py"]
    assert several.count("jax.make_mesh(") == 1
    assert several.count("mesh=device_mesh('i')") == 3


def test_the_function_stands_above_what_calls_it(after):
    mean = "mean = jax.pmap(lambda x: jax.lax.pmean(x, 'i'), axis_name='i')\n"
    maps = f"import jax\n\n{mean}total{mean[4:]}\n\ndef run(x):\n    return total(mean(x))\n"
    program = "import jax\nimport maps\njax.distributed.initialize()\nmaps.run(1)\n"
    found = after({"maps.py": maps, "train.py": program})["maps.py"]
    assert "multihost_utils\n\n\ndef device_mesh(axis_name):\n" in found
    assert "\n\n\nmean = " in found


def test_a_new_module_of_the_user_takes_precedence(after, tmp_path):
    (tmp_path / "lab").mkdir()
    found = after(LAB, helpers=str(tmp_path / "lab/sharding.py"))
    assert "def mesh():" in found["lab/sharding.py"]
    assert "device_mesh" not in "".join(found.values())


@pytest.mark.slow
def test_the_package_gives_the_same_and_starts_nothing_at_import(tmp_path):
    main = "import jax.numpy as jnp\nfrom lab import a, b, c\n"
    main += "print(a.total(jnp.arange(16.0)), b.total(jnp.ones(8)), c.total(jnp.arange(24.0)))\n"
    for name, text in {**LAB, "main.py": main}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(SRC), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = xla_flags()
    command = [sys.executable, "-m", "pmapx", "migrate", ".", "--write", "--verify", "--"]
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*command, sys.executable, "main.py"], timeout=300, check=False, **run)
    assert "0 different, 0 unverified." in done.stdout, done.stdout
    assert "utils.device_mesh(" in (tmp_path / "lab/a.py").read_text()
    # JAX refuses the option once its backend is initialized.
    text = "import jax, lab.a, lab.utils; jax.config.update('jax_num_cpu_devices', 2)"
    done = subprocess.run([sys.executable, "-c", text], timeout=120, check=False, **run)
    assert done.returncode == 0, done.stderr
