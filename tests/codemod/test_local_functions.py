# ruff: noqa: E501 -- programs as they are written
"""A function above the site, where a lambda around the mapped function would be hard to read."""

import ast

import pytest
from migrated import assert_same, rewritten, run_all

HEAD = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np

N = jax.local_device_count()
ROWS = np.arange(32.0, dtype=np.float32).reshape(8, 4) / 7
TREE = {"a": ROWS, "b": ROWS[:, 0]}


def step(w, x):
    return w + jax.lax.pmean(x.mean(), "i"), x * w


def tree_step(w, tree, scale=1.0):
    total = jax.lax.psum(tree["a"].sum() * scale, "i")
    return w + total, jax.tree.map(jnp.sin, tree)


def losses_of_all_examples_of_a_device(params, batch):
    return {"loss": batch["a"] * params["a"], "other": batch}


# The functions are called by others, so that their bodies stay.
OTHERS = step, tree_step, losses_of_all_examples_of_a_device

"""
AXES = "axis_name='i', in_axes=(None, 0), out_axes=(None, 0)"
# The program, what its new text has, and how many functions it has more.
CASES = {
    "results that are arrays": (
        f"f = jax.pmap(step, {AXES})\nRESULT = f(2.0, ROWS)\n",
        """


def sharded_step(w, x):
    result0, result1 = step(w, x[0])
    return result0, result1[None]


""",
        1,
    ),
    "results with the names that a call gives them": (
        f"def main(w):\n    f = jax.pmap(tree_step, {AXES})\n    for _ in range(2):\n"
        "        w, out = f(w, TREE)\n    return w, out\nRESULT = main(2.0)\n",
        """\
def main(w):
    def sharded_tree_step(w, tree):
        w, out = tree_step(w, jax.tree.map(lambda x: x[0], tree))
        return w, jax.tree.map(lambda x: x[None], out)

""",
        1,
    ),
    "a method": (
        "class Model:\n    tree = staticmethod(tree_step)\n\nclass A:\n    def __init__(self, w):\n        self.w = w\n        self.model = Model()\n\n"
        f"    def run(self, tree):\n        # The map.\n        f = jax.pmap(self.model.tree, {AXES})\n"
        "        self.w, tree = f(self.w, tree)\n        return self.w, tree\n\n"
        "RESULT = A(3.0).run(TREE)\n",
        """\
    def run(self, tree):
        def sharded_tree(w, tree):
            w, tree = self.model.tree(w, jax.tree.map(lambda x: x[0], tree))
            return w, jax.tree.map(lambda x: x[None], tree)

""",
        1,
    ),
    "loops and branches": (
        "fs = []\nfor k in (1.0, 2.0):\n    if k > 1:\n"
        f"        fs.append(jax.pmap(functools.partial(tree_step, scale=k), {AXES}))\n"
        "RESULT = [f(1.0, TREE) for f in fs]\n",
        """\
    if k > 1:
        def sharded_tree_step(
            w, tree, function=functools.partial(tree_step, scale=k)
        ):
            result0, result1 = function(w, jax.tree.map(lambda x: x[0], tree))
            return result0, jax.tree.map(lambda x: x[None], result1)

        fs.append(
""",
        1,
    ),
    "a name that is bound again": (
        f"def main(tree_step):\n    tree_step = jax.pmap(tree_step, {AXES})\n"
        "    return tree_step(1.0, TREE)\nRESULT = main(tree_step)\n",
        """\
    def sharded_tree_step(w, tree, tree_step=tree_step):
        result0, result1 = tree_step(w, jax.tree.map(lambda x: x[0], tree))
""",
        1,
    ),
    "a name that the function's text uses": (
        "def main(out):\n"
        f"    f = jax.pmap(functools.partial(tree_step, scale=out), {AXES})\n"
        "    w, out = f(1.0, TREE)\n    return w, out\nRESULT = main(2.0)\n",
        "        w, tree, function=functools.partial(tree_step, scale=out)\n    ):\n        w, out = function(",
        1,
    ),
    "a result with the name of what a partial is given": (
        "scale = 2.0\ndef main():\n    w, scale = f(1.0, TREE)\n    return w, scale\n"
        f"f = jax.pmap(functools.partial(tree_step, scale=scale), {AXES})\nRESULT = main()\n",
        "w, result1 = tree_step(w, jax.tree.map(lambda x: x[0], tree), scale=scale)\n",
        1,
    ),
    "a name that is taken": (
        f"def sharded_step(x):\n    return x\n\nf = jax.pmap(step, {AXES})\n"
        "RESULT = f(2.0, sharded_step(ROWS))\n",
        "\n\n\ndef sharded_step2(w, x):\n",
        1,
    ),
    "the same in two functions": (
        f"def one():\n    f = jax.pmap(step, {AXES})\n    return f(2.0, ROWS)\n\n"
        f"def two():\n    f = jax.pmap(step, {AXES})\n    return f(3.0, ROWS)\n\n"
        f"def both():\n    f = jax.pmap(step, {AXES})\n    g = jax.pmap(step, {AXES})\n"
        "    return f(3.0, ROWS), g(3.0, ROWS)\nRESULT = one(), two(), both()\n",
        "def two():\n    def sharded_step(w, x):\n",
        4,
    ),
    "two in a statement": (
        f"f, g = jax.pmap(step, {AXES}), jax.pmap(tree_step, {AXES})\nRESULT = f(2.0, ROWS), g(1.0, TREE)\n",
        "\n\n\ndef sharded_tree_step(w, tree):\n",
        2,
    ),
    "arguments that have names": (
        "def main(params, batch):\n    f = jax.pmap(losses_of_all_examples_of_a_device)\n"
        "    return f(params, batch)\nRESULT = main(TREE, TREE)\n",
        """\
    def sharded_losses_of_all_examples_of_a_device(params, batch):
        params, batch = jax.tree.map(lambda x: x[0], (params, batch))
        result = losses_of_all_examples_of_a_device(params, batch)
        return jax.tree.map(lambda x: x[None], result)

""",
        1,
    ),
    "any arguments": (
        "def main(f, *args, **kwargs):\n    g = jax.pmap(f)\n    return g(*args, **kwargs)\n"
        "RESULT = main(losses_of_all_examples_of_a_device, TREE, batch=TREE)\n",
        """\
    def sharded_f(args, kwargs):
        args, kwargs = jax.tree.map(lambda x: x[0], (args, kwargs))
        return jax.tree.map(lambda x: x[None], f(*args, **kwargs))

""",
        1,
    ),
    "a lambda of the program": (
        f"f = jax.pmap(lambda w, tree: tree_step(w, tree, 2.0), {AXES})\nRESULT = f(2.0, TREE)\n",
        """\
def sharded_f(w, tree):
    tree = jax.tree.map(lambda x: x[0], tree)
    result0, result1 = tree_step(w, tree, 2.0)
""",
        1,
    ),
    "a lambda that returns a tuple is edited": (
        f"f = jax.pmap(lambda w, x: (w, x * w), {AXES})\nRESULT = f(2.0, ROWS)\n",
        "        lambda w, x: (w, (x[0] * w)[None]),\n",
        0,
    ),
    "what is short stays a lambda": (
        "f = jax.pmap(jnp.sin)\nRESULT = f(ROWS)\n",
        "        lambda *args: jax.tree.map(\n",
        0,
    ),
}
# Where a function above the statement would see other names, or be something else.
KEPT = {
    "a class": f"class A:\n    f = staticmethod(jax.pmap(step, {AXES}))\nRESULT = A.f(2.0, ROWS)\n",
    "a comprehension": f"RESULT = [jax.pmap(f, {AXES})(2.0, ROWS) for f in [step]]\n",
    "a lambda": f"make = lambda f: jax.pmap(f, {AXES})\nRESULT = make(step)(2.0, ROWS)\n",
    "a default": f"def main(f=jax.pmap(step, {AXES})):\n    return f(2.0, ROWS)\nRESULT = main()\n",
    "a line of several statements": f"w = 2.0; f = jax.pmap(step, {AXES})\nRESULT = f(w, ROWS)\n",
    "a block on a line": f"if N: f = jax.pmap(step, {AXES})\nRESULT = f(2.0, ROWS)\n",
    "a condition": f"if jax.pmap(step, {AXES})(2.0, ROWS):\n    RESULT = 1\n",
    "what is evaluated in one case only": (
        f"def main(f, is_mapped):\n    f = jax.pmap(f.step, {AXES}) if is_mapped else f\n"
        "    return f\nRESULT = main(np, False)(2.0, ROWS) if 0 else main(1, False)\n"
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every program before and after, each side in one process."""
    root = tmp_path_factory.mktemp("programs")
    (root / "before").mkdir()
    (root / "after").mkdir()
    for name, text in {**{name: case[0] for name, case in CASES.items()}, **KEPT}.items():
        after, _ = rewritten(root / "before", HEAD + text, f"{name}.py")
        (root / "after" / f"{name}.py").write_bytes(after)
    return run_all(root / "before", "before"), run_all(root / "after", "after")


def names_of_functions(text):
    nodes = ast.walk(ast.parse(text))
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("case", CASES)
def test_a_function_stands_above_the_site_where_a_lambda_would_be_hard_to_read(tmp_path, case):
    before, expected, count = CASES[case]
    after = rewritten(tmp_path, HEAD + before)[0].decode()
    assert expected in after, after
    new = len(names_of_functions(after)) - len(names_of_functions(HEAD + before))
    assert new == count
    assert rewritten(tmp_path, after)[0].decode() == after


@pytest.mark.parametrize("case", KEPT)
def test_a_lambda_stays_where_no_function_can_stand_above(tmp_path, case):
    after = rewritten(tmp_path, HEAD + KEPT[case])[0].decode()
    assert "lambda " in after
    assert names_of_functions(after) == names_of_functions(HEAD + KEPT[case])


@pytest.mark.parametrize("case", [*CASES, *KEPT])
def test_both_give_the_same_to_the_bit(runs, case):
    before, after = runs
    assert_same(before[case], after[case])


def test_parameters_that_fill_their_lines_stand_deeper_than_the_body(tmp_path):
    names = ", ".join(f"argument_of_the_step_{i}" for i in range(4))
    filled = "".join(
        f"def f{i}(x):\n    return call(\n        x,\n        {i})\n" for i in range(4)
    )
    axes = "in_axes=(0, 0, 0, None), out_axes=(0, None)"
    text = f"import jax\nN = jax.device_count()\n{filled}def main({names}):\n"
    text += f"    return jax.pmap(f, {axes})(\n        {names})\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "    def sharded_f(\n            argument_of_the_step_0, " in after, after
    assert "):\n        argument_of_the_step_0, argument_of_the_step_1" in after
