"""Fixes of a whole file: notebooks, and fixes inside one another."""

import ast
import json

from reading import fixed


def test_the_cells_of_a_notebook_are_fixed_and_the_rest_keeps_every_byte():
    cells = [
        {"cell_type": "markdown", "source": ["jax.tree_map\n"]},
        {"cell_type": "code", "source": ["%time\n", "import jax\n"], "outputs": [1]},
        {"cell_type": "code", "source": ["y = jax.tree_map(f, x)"]},
        {"cell_type": "code", "source": ["p = jax.core.Primitive('p')\n", "!ls"]},
    ]
    before = json.dumps({"cells": cells, "nbformat": 4}, indent=1)
    after = json.loads(fixed(before, name="a.ipynb"))
    cells[1]["source"] = ["%time\n", "import jax\n", "import jax.extend.core"]
    cells[2]["source"] = ["y = jax.tree.map(f, x)"]
    cells[3]["source"] = ["p = jax.extend.core.Primitive('p')\n", "!ls"]
    # A line that is added to the end of a cell may end as the others do.
    cells[1]["source"][-1] += "\n" * after["cells"][1]["source"][-1].endswith("\n")
    assert after == {"cells": cells, "nbformat": 4}


def test_nested_fixes_are_made_in_rounds():
    before = "import jax\nx = jax.device_put_replicated(jax.tree_map(f, x), devices)\n"
    after = fixed(before, unsafe=True)
    assert "jax.tree.map(f, x)" in after
    assert "device_put_replicated" not in after
    ast.parse(after)
