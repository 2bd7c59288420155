"""What each process has for itself is not replicated over all of them."""

import textwrap

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.codemod.migration import migrate

PROGRAM = """\
import os, random, socket, time
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax import process_index as rank_of
{top}

def main():
    p_mean = jax.pmap(lambda t: jax.lax.pmean(t, "i"), axis_name="i")
    n = jax.local_device_count()
{body}
    state = jax.device_put_replicated(value, jax.local_devices())
    print(np.asarray(p_mean(state)).tolist())


jax.distributed.initialize()
main()
"""
OWN = {
    "arguments that are handed on": (
        "def make(f, *args):\n    return f(*args)\n"
        "def build(key, size):\n    return np.full(size, key)",
        "value = make(build, jax.process_index(), 2)",
    ),
    "options that are handed on": (
        "def make(**options):\n    return build(**options)\n"
        "def build(key=0):\n    return np.full(2, key)",
        "value = make(key=jax.process_index())",
    ),
    "settings of a library": (
        "import wandb",
        "if jax.process_index() == 0:\n    wandb.config.update({'seed': 1})\n"
        "value = np.full(2, wandb.config.seed)",
    ),
    "a lambda": ("", "make = lambda k: np.full(2, k)\nvalue = make(jax.process_index())"),
    "a jitted function": (
        "@jax.jit\ndef make(key):\n    return jnp.full(2, key)",
        "value = make(jax.process_index())",
    ),
    "a default": (
        "RANK = jax.process_index()\ndef make(key=RANK):\n    return np.full(2, key)",
        "value = make()",
    ),
    "a loop that ends early": (
        "",
        "value = np.zeros(2)\nfor i in range(4):\n    if i == jax.process_index():\n"
        "        break\n    value = value + 1",
    ),
    "an item that is removed": (
        "",
        "items = [1, 2]\nif jax.process_index():\n    items.pop()\nvalue = np.full(2, items[-1])",
    ),
    "a deleted item": (
        "",
        "held = {'a': 1, 'b': 2}\nif jax.process_index():\n    del held['a']\n"
        "value = np.array(list(held.values())[:1])",
    ),
    "an argument": ("", "value = np.full(2, jax.process_index())"),
    "another name": ("", "value = np.full(2, rank_of())"),
    "a branch": (
        "",
        "if jax.process_index() == 0:\n    value = np.ones(2)\nelse:\n    value = np.zeros(2)",
    ),
    "a flag": (
        "",
        "is_first = jax.process_index() == 0\nvalue = np.ones(2)\n"
        "if is_first:\n    value = value + 1",
    ),
    "a function": (
        "def make():\n    return np.random.RandomState(jax.process_index()).normal(size=2)",
        "value = make()",
    ),
    "a branch of a function": (
        "def make():\n    if jax.process_index():\n        return np.ones(2)\n"
        "    return np.zeros(2)",
        "value = make()",
    ),
    "a parameter": (
        "def make(seed):\n    return np.random.default_rng(seed).normal(size=2)",
        "value = make(3 + jax.process_index())",
    ),
    "an attribute": (
        "class Config:\n    def __init__(self):\n        self.rank = jax.process_index()",
        "config = Config()\nvalue = np.full(2, config.rank)",
    ),
    "a generator": (
        "def loader():\n    rng = np.random.default_rng(jax.process_index())\n"
        "    while True:\n        yield rng.normal(size=(4, 2))",
        "batches = loader()\nbatch = next(batches)\nvalue = batch.mean(0)",
    ),
    "an item": ("", "value = np.zeros(2)\nvalue[0] = jax.process_index()"),
    "a sum": ("", "total = 0\ntotal += jax.process_index()\nvalue = np.full(2, total)"),
    "a function that is made and called at once": (
        "def make(seed):\n    def build():\n        return np.full(2, seed)\n    return build",
        "print(make(0)())\nvalue = make(jax.process_index())()",
    ),
    "a function that was made before": (
        "MADE = []\ndef make(seed):\n    def build():\n        return np.full(2, seed)\n"
        "    MADE.append(build)\n    build = MADE[0]\n    return build",
        "make(jax.process_index())\nvalue = make(0)()",
    ),
    "what is counted along": (
        "def loader():\n    while True:\n        yield np.full(2, jax.process_index())",
        "for i, batch in zip(range(2), loader()):\n    value = batch * i",
    ),
    "a list": ("", "rows = []\nrows.append(jax.process_index())\nvalue = np.array(rows)"),
    "a device": ("", "value = np.full(2, jax.local_devices()[0].id)"),
    "a client": ("", "value = np.full(2, jax.devices()[0].client.process_index())"),
    "a variable of the launcher": ("", "value = np.full(2, int(os.environ['SLURM_PROCID']))"),
    "the time": ("", "value = jax.random.normal(jax.random.key(int(time.time())), (2,))"),
    "a process": ("", "value = np.full(2, os.getpid())"),
    "no seed": ("", "value = np.random.normal(size=2)"),
    "no seed of a generator": ("", "value = np.random.default_rng().normal(size=2)"),
    "a seed": ("", "np.random.seed(jax.process_index())\nvalue = np.random.normal(size=2)"),
    "a number before it was added to": (
        "",
        "seed = jax.process_index()\nseed += 3\nvalue = np.full(2, seed)",
    ),
    "an attribute of an object that is not known": (
        "import argparse",
        "args = argparse.ArgumentParser().parse_args()\nargs.seed += jax.process_index()\n"
        "value = np.full(2, args.seed)",
    ),
    "an attribute that is set by name": (
        "import argparse",
        "args = argparse.Namespace(seed=1)\nsetattr(args, 'seed', jax.process_index())\n"
        "value = np.full(2, args.seed)",
    ),
    "an item of an attribute": (
        "class Config:\n    def __init__(self):\n        self.seeds = {}\n"
        "    def set_up(self):\n        self.seeds['model'] = jax.process_index()",
        "config = Config()\nconfig.set_up()\nvalue = np.full(2, config.seeds['model'])",
    ),
    "a list in an attribute, in one process alone": (
        "class Config:\n    def __init__(self):\n        self.seeds = [1]\n"
        "    def set_up(self):\n        if jax.process_index():\n            self.seeds.append(2)",
        "config = Config()\nconfig.set_up()\nvalue = np.full(2, config.seeds[-1])",
    ),
    "an attribute that is set through the dict of its object": (
        "import argparse",
        "args = argparse.Namespace(seed=1)\nargs.__dict__.update(seed=jax.process_index())\n"
        "value = np.full(2, args.seed)",
    ),
    "a property": (
        "class Config:\n    @property\n    def rank(self):\n        return jax.process_index()",
        "value = np.full(2, Config().rank)",
    ),
    "all devices of the process": ("", "value = np.array([d.id for d in jax.local_devices()])"),
    "an order": (
        "",
        "value = np.arange(2.0)\nnp.random.default_rng(jax.process_index()).shuffle(value)",
    ),
    "a copy": ("", "value = np.zeros(2)\nnp.copyto(value, np.full(2, jax.process_index()))"),
    "as many splits of a key": (
        "",
        "key = jax.random.key(0)\nfor _ in range(jax.process_index() + 1):\n"
        "    key, _ = jax.random.split(key)\nvalue = jax.random.normal(key, (2,))",
    ),
    "a variable that a function sets": (
        "SEED = 0\ndef set_up():\n    global SEED\n    SEED = jax.process_index()",
        "set_up()\nvalue = np.full(2, SEED)",
    ),
    "a result of its devices": (
        "",
        "own = jax.pmap(lambda x: x + jax.lax.axis_index('i'), axis_name='i')\n"
        "value = np.asarray(own(np.ones(n) * jax.process_index()))[0]",
    ),
}
SAME = {
    "a constant": ("", "value = np.ones(2)"),
    "a field of the name of a library's settings": (
        "import wandb",
        "options = get_options()\nif jax.process_index() == 0:\n"
        "    wandb.config.update({'seed': 1})\nvalue = np.full(2, options.config.seed)",
    ),
    "the number of processes": ("", "value = np.ones(2) / jax.process_count()"),
    "a seed": ("", "np.random.seed(0)\nvalue = np.random.normal(size=2)"),
    "a seed of a generator": ("", "value = np.random.default_rng(3).normal(size=2)"),
    "what one process sends": (
        "",
        "value = multihost_utils.broadcast_one_to_all(np.full(2, jax.process_index()))",
    ),
    "a number beside a batch": (
        "def loader():\n    while True:\n        yield np.full(2, jax.process_index())",
        "for i, batch in zip(range(2), loader()):\n    value = np.ones(2) * i",
    ),
    "what is built with the structure of a tree": (
        "def built(treedef):\n    return jax.tree.unflatten(treedef, [np.ones(2), 0])",
        "held = {'rank': jax.process_index(), 'params': np.zeros(2)}\n"
        "value = built(jax.tree.structure(held))['params']",
    ),
    "another call of what makes a function": (
        "def make(seed):\n    def build():\n        return np.full(2, seed)\n    return build",
        "print(make(jax.process_index())())\nvalue = make(3)()",
    ),
    "a shape": (
        "def loader():\n    yield np.random.default_rng(jax.process_index()).normal(size=(4, 2))",
        "batch = next(loader())\nvalue = np.zeros(batch.shape[1:])",
    ),
    "the number of its devices": ("", "value = np.ones(2) * len(jax.local_devices())"),
    "another attribute of settings": (
        "",
        "config = get_config()\nconfig.data_seed = jax.process_index()\n"
        "value = np.full(2, config.seed)",
    ),
    "another field": (
        "import dataclasses\n\n@dataclasses.dataclass\nclass Data:\n    batches: object\n"
        "    width: int\n\n"
        "def data():\n    return Data(np.full(2, jax.process_index()), 2)",
        "value = np.ones(data().width)",
    ),
    "the number of a batch": (
        "def loader():\n    yield np.random.default_rng(jax.process_index()).normal(size=(4, 2))",
        "for i, batch in enumerate(loader()):\n    value = np.ones(2) * i",
    ),
    "another result": (
        "def data():\n    return np.full(2, jax.process_index()), 2",
        "batch, width = data()\nvalue = np.ones(width)",
    ),
    "a key that a model is initialized with": (
        "def start(model, batch):\n    return model.init(jax.random.key(0), batch)",
        "value = start(get_model(), np.full(2, jax.process_index()))",
    ),
    "a mean": (
        "",
        "mean = jax.pmap(lambda x: jax.lax.pmean(x, 'i'), axis_name='i')\n"
        "value = np.asarray(mean(np.ones(n) * jax.process_index()))[0]",
    ),
}  # fmt: skip


def is_replicated(tmp_path, top, body):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.format(top=top, body=textwrap.indent(body, "    ")))
    done = migrate([str(tmp_path)])
    assert done.failure is None
    (migrated,) = done.changed
    return "jax.device_put(value, jax.NamedSharding(mesh, jax.P()))" in migrated.after.decode()


@pytest.mark.parametrize("name", OWN)
def test_a_value_that_differs_between_processes_stays_stacked(tmp_path, name):
    assert not is_replicated(tmp_path, *OWN[name])


@pytest.mark.parametrize("name", SAME)
def test_a_value_that_is_equal_on_all_processes_is_replicated(tmp_path, name):
    assert is_replicated(tmp_path, *SAME[name])


SETTINGS = {
    "a variable": ("RANK = jax.process_index()\nseed = 1 + RANK", ""),
    "a variable that a function sets": (
        "seed = 1\ndef set_up(rank):\n    global seed\n    seed += rank",
        "settings.set_up(jax.process_index())\n",
    ),
    "a variable that another file sets": ("seed = 1", "settings.seed += jax.process_index()\n"),
}


@pytest.mark.parametrize("top", ["import settings", "import settings\nfrom settings import seed"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_variable_of_a_module_that_differs_between_processes_is_followed(tmp_path, name, top):
    settings, body = SETTINGS[name]
    (tmp_path / "settings.py").write_text(f"import jax\n\n{settings}\n")
    read = "seed" if "from" in top and not body else "settings.seed"
    assert not is_replicated(tmp_path, top, f"{body}value = np.full(2, {read})")


def test_a_variable_of_a_module_that_is_equal_on_all_processes_is_replicated(tmp_path):
    (tmp_path / "settings.py").write_text("import jax\n\nrank = jax.process_index()\nseed = 1\n")
    assert is_replicated(tmp_path, "import settings", "value = np.full(2, settings.seed)")
