"""Where an import goes, and how it is spelled."""

import ast

import pytest

from pmapx._src.source import files
from pmapx._src.source.rewriting.added_imports import added, beside
from pmapx._src.source.rewriting.edits import applied

FLAGS = 'import os\nos.environ["XLA_FLAGS"] = "--xla_dump_to=x"\n'
MAIN = 'if __name__ == "__main__":\n    import absl.app\n    absl.app.run(main)\n'
CASES = {
    "sorted into the section of its package": (
        "import numpy as np\n\nimport jax\nimport optax\nx = 1\n",
        ["import jax.numpy as jnp"],
        "import numpy as np\n\nimport jax\nimport jax.numpy as jnp\nimport optax\nx = 1\n",
    ),
    "the standard library has its own section": (
        "from __future__ import annotations\n\nimport jax\nx = 1\n",
        ["import functools"],
        "from __future__ import annotations\n\nimport functools\n\nimport jax\nx = 1\n",
    ),
    "what the file has is not added": ("import jax\n", ["import jax"], "import jax\n"),
    "no imports": ("x = 1\n", ["import jax", "import os"], "import os\n\nimport jax\n\nx = 1\n"),
    "a docstring": ('"""Ours."""\nx = 1\n', ["import jax"], '"""Ours."""\n\nimport jax\n\nx = 1\n'),
    "only a comment": ("# Ours.\n", ["import jax"], "# Ours.\n\nimport jax"),
    "behind flags that are set before JAX is imported": (
        f"{FLAGS}import jax\nx = 1\n",
        ["import pmapx"],
        f"{FLAGS}import jax\nimport pmapx\nx = 1\n",
    ),
    "a new package is sorted in above the project's own": (
        "import numpy as np\nimport optax\n\nfrom lab import data\nx = 1\n",
        ["import jax"],
        "import jax\nimport numpy as np\nimport optax\n\nfrom lab import data\nx = 1\n",
    ),
    "a new package stays below the flags": (
        f"import numpy as np\n{FLAGS}from lab import data\nx = 1\n",
        ["import jax"],
        f"import numpy as np\n{FLAGS}from lab import data\nimport jax\nx = 1\n",
    ),
    "not behind the imports of a script's end": (
        f"import jax\ndef main(_): pass\n{MAIN}",
        ["import pmapx"],
        f"import jax\nimport pmapx\ndef main(_): pass\n{MAIN}",
    ),
}


def source_of(text):
    source = files.parse("lab/a.py", text.encode())
    assert isinstance(source, files.Source)
    return source


@pytest.mark.parametrize("case", CASES)
def test_an_import_goes_where_the_file_has_its_like(case):
    before, wanted, after = CASES[case]
    assert applied(before.encode(), added(source_of(before), wanted)).decode() == after


def test_an_import_is_above_the_first_line_that_needs_it():
    text = "import jax\nf = jax.pmap(abs)\nimport numpy as np\n"
    edits = added(source_of(text), ["import pmapx"], changed={2})
    assert applied(text.encode(), edits).decode() == text.replace("f =", "import pmapx\nf =")


def test_an_import_beside_its_package_is_never_above_the_flags():
    text = f"{FLAGS}import jax.numpy as jnp\nx = jnp.ones(3)\n"
    source = source_of(text)
    edit = beside(source, "import jax", source.tree.body[-1])
    assert applied(text.encode(), [edit]).decode() == text.replace(
        "import jax", "import jax\nimport jax"
    )
    assert beside(source, "import flax", source.tree.body[-1]) is None
    assert beside(source, "import jax", ast.Name("x", lineno=2)) is None
