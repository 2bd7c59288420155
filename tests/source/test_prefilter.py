"""Files are searched as bytes first; of those that are parsed, nothing is missed."""

import pytest

from pmapx._src.lint.searched_names import has_uses
from reading import findings


def test_a_function_that_names_nothing_of_jax_is_followed_from_another_file(tmp_path):
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


def test_a_syntax_error_in_a_function_without_jax_is_reported(tmp_path):
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


def test_a_longer_name_with_get_metrics_in_it_is_no_use():
    text = b"from flax.training import common_utils as u\n"
    assert has_uses(text + b"u.get_metrics(m)")
    assert not has_uses(text + b"model.get_metrics_fn(m)")
