"""What came out of a pmap, followed to where a row of it is taken."""

import pytest

from reading import findings, marked

HEAD = """
import functools, operator
import jax, jax.numpy as jnp
from flax import jax_utils
def array(x): return x + 1
def pair(x, y): return x + 1, {"loss": jnp.mean(y)}
step = jax.pmap(array)
both = jax.pmap(pair, axis_name="i")
"""

ROWS = {
    "direct": "y = step(x)\nprint(y[0])  # here\n",
    "at once": "print(jax.pmap(array)(x)[0])  # here\n",
    "another row": "y = step(x)\nprint(y[3])  # here\n",
    "last row": "y = step(x)\nprint(y[-1])  # here\n",
    "row and more": "y = step(x)\nprint(y[0, :, 1])  # here\n",
    "ellipsis": "y = step(x)\nprint(y[0, ...])  # here\n",
    "unpacked": "s, m = both(x, x)\nprint(s[0])  # here\n",
    "dict in a tuple": "s, m = both(x, x)\nprint(m['loss'][0])  # here\n",
    "part of the tuple": "s = both(x, x)[0]\nprint(s[0])  # here\n",
    "nested targets": "(a, b), c = both(x, x), 1\nprint(a[0])  # here\n",
    "through a name": "y = step(x)\nz = y\nprint(z[0])  # here\n",
    "through a helper": "def first(v):\n  return v[0]  # here\nprint(first(step(x)))\n",
    "out of a helper": "def run(x):\n  return step(x)\nprint(run(x)[0])  # here\n",
    "out of a helper, in a function": (
        "def run(x):\n  return step(x)\ndef main(x):\n  y = run(x)\n  return y[0]  # here\n"
    ),
    "out of an object, in a function": (
        "class T:\n  def run(self, x):\n    return step(x)\n"
        "def main(x):\n  y = T().run(x)\n  return y[0]  # here\n"
    ),
    "attribute": (
        "class T:\n  def __init__(self):\n    self.f = jax.pmap(self.g)\n  def g(self, x):\n"
        "    return x + 1\n  def run(self, x):\n    self.y = self.f(x)\n  def show(self):\n"
        "    return self.y[0]  # here\n"
    ),
    "comprehension": "s, m = both(x, x)\nd = {k: v[0] for k, v in m.items()}  # here\n",
    "loop": "s, m = both(x, x)\nfor k, v in m.items():\n  print(v[0])  # here\n",
    "walrus": "print((y := step(x))[0])  # here\n",
    "field": "s, m = both(x, x)\nprint(s.params[0])  # here\n",
    "list": "ys = []\nfor x in xs:\n  ys.append(step(x))\nfor y in ys:\n  print(y[0])  # here\n",
    "branch": "y = step(x) if c else None\nprint(y[0])  # here\n",
    "after a wait": "y = jax.block_until_ready(step(x))\nprint(y[0])  # here\n",
    "replicated": "p = jax_utils.replicate(p)\nprint(p['w'][0])  # here\n",
    "leaf of a chosen object": "p = jax_utils.replicate(p)\nprint(p.opt[0].count[0])  # here\n",
    "method of a row": "y = step(x)\nprint(y[0].mean())  # here\n",
    "itemgetter": "print(operator.itemgetter(0)(step(x)))  # here\n",
    "decorated": "@jax.pmap\ndef f(x): return x * 2\nprint(f(x)[0])  # here\n",
    "partial": (
        "def g(k, x): return x * k\nf = jax.pmap(functools.partial(g, 2))\nprint(f(x)[0])  # here\n"
    ),
    "generator": "def gen():\n  yield step(x)\nfor y in gen():\n  print(y[0])  # here\n",
    "out_axes of one": (
        "f = jax.pmap(pair, out_axes=(None, 0))\na, b = f(x, x)\nprint(a[0])\n"
        "print(b['loss'][0])  # here\n"
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_reading_one_shard_is_found(tmp_path, case):
    found, expected = marked(tmp_path, "PMX521", HEAD + ROWS[case], confidence="medium")
    assert found == expected


TREES = {
    "jax.tree.map": "print(jax.tree.map(lambda v: v[0], step(x)))  # here\n",
    "tree_util": "print(jax.tree_util.tree_map(lambda v: v[0], step(x)))  # here\n",
    "old name": "print(jax.tree_map(lambda v: v[0], step(x)))  # here\n",
    "multimap": "print(jax.tree_multimap(lambda v: v[0], step(x)))  # here\n",
    "dm-tree": "import tree\nprint(tree.map_structure(lambda v: v[0], step(x)))  # here\n",
    "with more": "print(jax.tree.map(lambda v: jnp.sum(v[0]), step(x)))  # here\n",
    "named": "def first(v): return v[0]\nprint(jax.tree.map(first, step(x)))  # here\n",
    "itemgetter": "print(jax.tree.map(operator.itemgetter(0), step(x)))  # here\n",
    "imported": (
        "from jax.tree_util import tree_map\nprint(tree_map(lambda v: v[0], step(x)))  # here\n"
    ),
    "of several": "s, m = both(x, x)\nprint(jax.tree.map(lambda v: v[0], (s, m)))  # here\n",
}


@pytest.mark.parametrize("case", TREES)
def test_a_first_of_a_tree_is_found_at_the_call(tmp_path, case):
    found, expected = marked(tmp_path, "PMX522", HEAD + TREES[case], confidence="high")
    assert found == expected


UNREPLICATES = {
    "flax": "print(jax_utils.unreplicate(step(x)))  # here\n",
    "imported": "from flax.jax_utils import unreplicate\nprint(unreplicate(step(x)))  # here\n",
    "metrics": (
        "from flax.training import common_utils\nms = []\nms.append(both(x, x)[1])\n"
        "print(common_utils.get_metrics(ms))  # here\n"
    ),
    "take": "print(jnp.take(step(x), 0, axis=0))  # here\n",
}


@pytest.mark.parametrize("case", UNREPLICATES)
def test_functions_that_read_one_shard_are_found(tmp_path, case):
    found, expected = marked(tmp_path, "PMX523", HEAD + UNREPLICATES[case], confidence="high")
    assert found == expected


NO_ROWS = {
    "tuple's first": "s = both(x, x)[0]\n",
    "tuple's first, kept": "r = both(x, x)\ns = r[0]\n",
    "shape": "y = step(x)\nprint(y.shape[0])\n",
    "shards": "y = step(x)\nprint(y.addressable_shards[0].data)\n",
    "on the host": "y = jax.device_get(step(x))\nprint(y[0])\n",
    "rebound": "y = step(x)\ny = load()\nprint(y[0])\n",
    "unreplicated before": "y = jax_utils.unreplicate(step(x))\nprint(y[0])\n",
    "summed": "y = step(x)\nprint(y.sum()[0])\n",
    "out_axes None": "y = jax.pmap(array, out_axes=None)(x)\nprint(y[0])\n",
    "another array": "y = load()\nprint(y[0])\n",
    "list of results": "ys = [step(x) for x in xs]\nprint(ys[0])\n",
    "list of parts": "y = step(x)\nys = list(y)\nprint(ys[0])\n",
    "argument of the map": "def f(x): return x[0]\ng = jax.pmap(f)\n",
    "vmap": "y = jax.vmap(array)(x)\nprint(y[0])\n",
    "jit": "y = jax.jit(array)(x)\nprint(y[0])\n",
    "slice": "y = step(x)\nprint(y[:4])\n",
    "shadowed": "y = step(x)\ndef h(y): return y[0]\n",
    "part of an object": "p = jax_utils.replicate(p)\nprint(p.opt[0].count, p.opt[0]['w'])\n",
    "deleted": "y = step(x)\ndel y\ny = load()\nprint(y[0])\n",
}


@pytest.mark.parametrize("case", NO_ROWS)
def test_an_index_into_anything_but_a_pmap_output_is_not_reported(tmp_path, case):
    found = findings(
        tmp_path, program=HEAD + NO_ROWS[case], select=("PMX521", "PMX522"), confidence="medium"
    )
    assert found == []


def test_an_unknown_result_gives_low_confidence(tmp_path):
    text = "import jax\nfrom lib import f\ny = jax.pmap(f)(x)\nprint(y[0])\n"
    (found,) = findings(tmp_path, program=text, select=("PMX521",))
    assert str(found.confidence) == "low"


def test_a_value_is_followed_into_another_file(tmp_path):
    found = findings(
        tmp_path,
        files={
            "pkg/__init__.py": "",
            "pkg/steps.py": "import jax\nstep = jax.pmap(lambda x: x + 1)\n",
            "pkg/loop.py": "from pkg import steps\ny = steps.step(1)\nprint(y[0])\n",
        },
        select=("PMX521",),
    )
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("loop.py", 3)]


def test_a_function_that_makes_a_step_is_followed(tmp_path):
    text = HEAD + "def make(f):\n  return jax.pmap(f)\ns = make(array)\nprint(s(x)[0])  # here\n"
    found, expected = marked(tmp_path, "PMX521", text)
    assert found == expected


def test_recursion_ends(tmp_path):
    text = HEAD + "def f(x):\n  return f(step(x))\nprint(f(x)[0])\n"
    assert findings(tmp_path, program=text, select=("PMX521",)) == []
