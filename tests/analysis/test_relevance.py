"""Functions that lead to no name of a rule are not read, and no finding is lost by that."""

import textwrap

import pytest

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.lint.searched_names import relevant
from reading import findings

RELEVANT = {
    "a name": "def f(x):\n    return jax.pmap(x)",
    "another name for it": "from jax import pmap as p\ndef f(x):\n    return p(x)",
    "a module as a local": "def f(x):\n    j = jax\n    return j.pmap(x)",
    "an import in it": "def f(x):\n    from jax import pmap as p\n    return p(x)",
    "an import alone": "def f():\n    from jax import tree_map",
    "an import beside a use": "def f(x):\n    import jax as j; return j.pmap(x)",
    "a field of an f-string": "def f(x):\n    return f'{jax.pmap(x)}'",
    "a line that follows a hash in a string": "def f(x):\n    return '#', jax.pmap(x)",
    "a default": "def f(x, m=jax.pmap):\n    return m(x)",
    "what it calls": "step = jax.pmap(g)\ndef f(x):\n    return step(x)[0]",
    "a function that it calls": (
        "def count():\n    return jax.device_count()\n"
        "def f(x):\n    return jnp.stack([x] * count())"
    ),
    "a method": (
        "class T:\n    def run(self, x):\n        return self.step(x)[0]\n"
        "    def step(self, x):\n        return jax.pmap(g)(x)\nf = T.run"
    ),
    "a method of a base": (
        "class B:\n    def step(self, x):\n        return jax.pmap(g)(x)\n"
        "class T(B):\n    def run(self, x):\n        return super().step(x)[0]\nf = T.run"
    ),
    "a pmap of ours": "import pmapx\ndef f(x):\n    return pmapx.pmap(g)(x)[0]",
    "a list": "steps = [jax.pmap(g)]\ndef f(x):\n    return steps[0](x)[0]",
    "a keyword argument's value": "step = jax.pmap(g)\ndef f(x):\n    return run(x, fn=step)",
    "a comparison": "step = jax.pmap(g)\ndef f(x):\n    return run(x, step == x)",
    "an f-string that names what it shows": (
        "step = jax.pmap(g)\ndef f():\n    print(f'{1, step=}')"
    ),
    "a string right after a keyword": "def f(x):\n    return'#', jax.pmap(x)",
    "a decorator of a function in it": "def f(x):\n    @jax.pmap\n    def g(y): return y\n    g(x)",
    "the first of every leaf, by a wrapper": (
        "def each(g, tree):\n    return jax.tree.map(g, tree)\n"
        "def f(tree):\n    return each(lambda x: x[0], tree)"
    ),
}
IRRELEVANT = {
    "a docstring": 'def f(x):\n    """Is jax.pmap."""\n    return x',
    "a comment": "def f(x):\n    return x  # jax.pmap",
    "a name of another module": "import numpy as np\ndef f(x):\n    return np.array(x)",
    "another name of JAX": "def f(x):\n    return jnp.sum(x) + jax.lax.psum(x, 'i')",
    "a tree_map that computes": "def f(x):\n    return jax.tree.map(jnp.sum, x)",
    "a keyword of a pmapped function's name": (
        "step = jax.pmap(g)\ndef f(x):\n    return run(x, step=1)"
    ),
    "a keyword on a line of its own": (
        "step = jax.pmap(g)\ndef f(x):\n    return run(\n        x,  # all\n        step = 1)"
    ),
    "a local of a pmapped function's name": "step = jax.pmap(g)\ndef f(x):\n    step = 1",
    "what calls only such": "def g(x): return jnp.sum(x)\ndef f(x):\n    return g(x)",
    "functions that call each other": "def g(x): return f(x)\ndef f(x):\n    return g(x)",
}


def is_relevant(text):
    text = f"import jax\nimport jax.numpy as jnp\n{text}\njax.pmap\n"
    project = Project(["a.py"], relevant_names=relevant())
    module = project.module("a.py", data=text.encode())
    (function,) = module.env.find("f")
    return project.relevance.of(function)


@pytest.mark.parametrize("case", RELEVANT)
def test_a_function_is_relevant_by(case):
    assert is_relevant(RELEVANT[case])


@pytest.mark.parametrize("case", IRRELEVANT)
def test_a_function_is_not_relevant_by(case):
    assert not is_relevant(IRRELEVANT[case])


def test_names_are_followed_through_modules_of_the_project(tmp_path):
    files = {
        "lib/__init__.py": "",
        "lib/steps.py": "import jax\ndef make(f):\n    return jax.pmap(f)\n",
        "train.py": "from lib import steps\ndef train(f, x):\n    return steps.make(f)(x)[0]\n",
    }
    found = findings(tmp_path, files=files, select=("PMX521",))
    assert [(f.place.path.rpartition("/")[2], f.place.line) for f in found] == [("train.py", 3)]


def test_a_method_that_is_read_before_its_attribute_is_assigned_is_read_again(tmp_path):
    text = """
        import jax
        class Trainer:
            def run(self, x):
                return self.step(x)[0]
            def setup(self, f):
                self.step = jax.pmap(f)
    """
    found = findings(tmp_path, program=textwrap.dedent(text), select=("PMX521",))
    assert [f.place.line for f in found] == [5]


def test_a_mesh_that_another_method_uses_is_followed(tmp_path):
    text = """
        import jax
        class Trainer:
            def __init__(self):
                self.mesh = jax.make_mesh((8,), ("i",))
            def setup(self, f):
                spec = jax.P("i")
                self.step = jax.shard_map(f, mesh=self.mesh, in_specs=spec, out_specs=spec)
    """
    found = findings(tmp_path, program=textwrap.dedent(text), select=("PMX552",))
    assert [f.place.line for f in found] == [5]


def test_a_function_that_is_read_before_it_is_jitted_is_read_again(tmp_path):
    text = """
        import jax
        step = jax.pmap(lambda x: x)
        def outer(x):
            return step(x)
        def main(x):
            return jax.jit(outer)(x)
    """
    found = findings(tmp_path, program=textwrap.dedent(text), select=("PMX503",))
    assert [f.place.line for f in found] == [5]


READINGS = {
    "reads": ("print(self.step)", 2),
    "assigns": ("self.step = None", 1),
    "shows": ('print(f"{self.step=}")', 2),
    "compares": ("print(self.step == None)", 2),
}


@pytest.mark.parametrize("case", READINGS)
def test_a_module_is_read_again_if_a_method_that_was_read_before(case, monkeypatch):
    statement, count = READINGS[case]
    readings = []
    read = Module.read_pending
    monkeypatch.setattr(Module, "read_pending", lambda self: readings.append(self) or read(self))
    text = f"""
        import jax
        class Trainer:
            def reset(self):
                {statement}
                jax.pmap(g)
            def make(self):
                self.step = jax.pmap(g)
        """
    project = Project(["a.py"], relevant_names=relevant())
    project.module("a.py", data=textwrap.dedent(text).encode())
    assert len(readings) == count
