"""Definitions that lead nowhere are left out of the tree, and nothing is missed for it."""

import ast
import textwrap

import pytest

from pmapx._src.lint.searched_names import has_uses
from pmapx._src.source.excerpts import excerpt
from reading import findings


def left_out(text, **options):
    part, names = excerpt(textwrap.dedent(text).encode(), **options)
    assert part.count(b"\n") == textwrap.dedent(text).count("\n")
    ast.parse(part)
    return set(names)


def test_what_names_nothing_telling_is_left_out():
    text = """
    import jax
    import numpy as np

    def step(x):
        return jax.pmap(x)

    def plain(x):
        return np.ones(x)

    class Plain:
        def area(self):
            return 1
    """
    assert left_out(text) == {"plain", "Plain"}


@pytest.mark.parametrize(
    "definition",
    [
        "def f(x): return pm(x)",
        "def f(x): return step(x)",
        "def f(t): return t.mapped",
        "def f(x): return first(x)\nstep2 = step(f)",
        "@decorated\ndef f(x): return x\n@jax.jit\ndef decorated(x): return f(x)",
        "def f(): os.environ['JAX_PMAP_SHMAP_MERGE'] = '0'",
        "async def f(x): await jax.block(x)",
        "class f(Base): pass\nclass Base:\n  x = jax.pmap",
        "def f(x: 'jax.Array'): return x",
        "def f(x, y=pm): return x",
    ],
)
def test_what_may_lead_somewhere_stays(definition):
    text = """
    import jax
    from jax import pmap as pm
    import os

    def step(t):
        t.other, t.mapped = 1, jax.pmap(abs)
        return first(t)

    def first(x): return x[0]
    """
    assert "f" not in left_out(textwrap.dedent(text) + definition + "\n")


@pytest.mark.parametrize(
    "text",
    [
        'import jax\ndef f():\n  return """\ndef g(): pass\n"""\n',
        "import jax\ndef f(:\n  pass\n",
        "import jax\ndef f():\n  print 'x'\n",
        "import jax\ndef f():\n  x = (1,\n",
        "import jax\ndef f():\n  try: pass\n  except A, e: pass\n",
        "from a import *\ndef f(): pass\n",
        "import jax\r\x0cdef f(): pass\r",
        "",
        "def",
        "\n\n",
        "@\n@a\n",
    ],
)
def test_what_is_not_surely_a_definition_stays(text):
    assert excerpt(text.encode()) == (text.encode(), frozenset())


def test_a_module_of_the_project_may_have_a_name_of_the_standard_library():
    text = "import jax\nimport queue\ndef f(x): return queue.step(x)\n"
    assert left_out(text) == {"f"}
    assert left_out(text, project={"queue"}) == set()


def test_another_file_gets_what_was_left_out(tmp_path):
    files = {
        "rows.py": """
            import jax
            step = jax.pmap(lambda x: x)
            def first(x):
                return x[0]
            """,
        "train.py": """
            import jax
            from rows import first, step
            print(first(step(1)), jax.pmap(abs))
            """,
    }
    found = findings(tmp_path, files=files, select=("PMX52",))
    assert [(f.place.path.endswith("rows.py"), f.place.line) for f in found] == [(True, 5)]


def test_a_syntax_error_in_a_skipped_part_is_reported(tmp_path):
    text = "import jax\nf = jax.pmap(abs)\ndef g(x:\n    return x\n"
    assert [f.code for f in findings(tmp_path, text)] == ["PMX500"]


@pytest.mark.parametrize(
    "text",
    [
        "import jax\n",
        "import jax.numpy as jnp\nx = jax.random.key(0)\n",
        "import jax\n\n@jax.jit\ndef copies(x): return jax.nn.relu(x)\n",
    ],
)
def test_jax_that_leads_to_no_finding_is_not_even_parsed(text):
    assert not has_uses(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "import jax as j\nj.pmap(f)",
        "from jax import pmap",
        "import jax\nf = jax.pmap",
        "import jax.random as jr\njr.KeyArray, jr.replicate",
        "import jax\nx: jax.random.KeyArray",
        "from flax import jax_utils\njax_utils.replicate(x)",
        "import jax\ng = getattr(jax, 'pmap')",
        "import jax\ny = jax\ny.pmap(f)",
        "import jax; jax.pmap(f)",
        "from jax import (\n  pmap\n)",
    ],
)
def test_any_other_mention_counts(text):
    assert has_uses(text.encode())
