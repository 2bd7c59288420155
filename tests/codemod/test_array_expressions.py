"""Which results of a mapped function are one array, and get their axis by ``[None]``."""

import ast

import pytest
from migrated import rewritten

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide.array_expressions import ArrayExpressions

ARRAYS = {
    "an operation with one": "return jnp.ones(3) * scale",
    "a collective of one": "return jax.lax.pmean(jnp.sum(x), 'i')",
    "a key that is split": "key, own = jax.random.split(key)\n    return key",
    "a part of one": "y = jnp.ones((3, 2))\n    return y[0]",
    "a part by several indices": "return tree[:, -1, 1:]",
    "a choice between two": "return jnp.where(x > 0, x, 0)",
    "a loss": "loss, grads = jax.value_and_grad(f)(x)\n    return loss",
    "a sum over a loop": "y = jnp.ones(3)\n    for i in tree:\n        y = y + i\n    return y",
    "a parameter that is one": "return x",
    "numpy's": "return np.arange(3)",
}
OTHERS = {
    "a parameter that nothing is known of": "return tree",
    "a part of a list": "return tree[1:]",
    "a collective of a tree": "return jax.lax.pmean(tree, 'i')",
    "a gradient": "loss, grads = jax.value_and_grad(f)(x)\n    return grads",
    "a loss with more": "loss, grads = jax.value_and_grad(f, has_aux=True)(x)\n    return loss",
    "several arrays": "return jnp.split(x, 2)",
    "where something is": "return jnp.where(x > 0)",
    "a list that grows": "y = []\n    y = y + [x]\n    return y",
    "a name that a loop binds": "y = jnp.ones(3)\n    for y in tree:\n        pass\n    return y",
    "an array that becomes a tree": "y = jnp.ones(3)\n    y = tree\n    return y",
    "a name of an inner function": "y = x + 1\n    def y(): pass\n    return y",
    "a shape": "return jnp.shape(x)",
    "a decomposition": "return jnp.linalg.eigh(x)",
    "an unknown function's": "return f(x)",
}


def is_array(body):
    imports = "import jax\nimport numpy as np\nfrom jax import numpy as jnp\n"
    text = f"{imports}def g(x, tree, key, f, scale):\n    {body}\n"
    module = Project(["a.py"]).module("a.py", data=text.encode())
    function = module.source.tree.body[-1]
    returned = next(node for node in ast.walk(function) if isinstance(node, ast.Return))
    return ArrayExpressions(module, function, frozenset({"x", "key"})).is_array(returned.value)


@pytest.mark.parametrize("case", ARRAYS)
def test_one_array(case):
    assert is_array(ARRAYS[case])


@pytest.mark.parametrize("case", OTHERS)
def test_may_be_a_tree(case):
    assert not is_array(OTHERS[case])


def test_an_array_in_the_only_call_is_indexed_in_a_lambda(tmp_path):
    text = (
        "import jax\nimport numpy as np\nn = jax.local_device_count()\nx = np.ones((n, 2))\n"
        "y = jax.pmap(lambda v: jax.lax.psum(v + 1, 'i'), 'i')(x)\n"
    )
    assert b"lambda v: jax.lax.psum(v[0] + 1, 'i')[None]," in rewritten(tmp_path, text)[0]
