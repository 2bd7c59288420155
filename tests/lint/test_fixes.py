"""The fixes of rules: what they leave alone first, then what they change."""

import ast
import json
import textwrap

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.lint.fixing import fix_file
from pmapx._src.lint.rules import all_rules


def fixed(text, *, unsafe=False, name="program.py"):
    """A program after its fixes, which leave it as it is when applied again."""
    data = textwrap.dedent(text).encode()
    after = fix_file(Project([name]), name, data, is_unsafe=unsafe).after
    assert fix_file(Project([name]), name, after, is_unsafe=unsafe).after == after
    return after.decode()


def assert_fixed(before, after, **options):
    assert fixed(before, **options) == textwrap.dedent(after)


LEFT_ALONE = {
    "a name of another module": "import jax, mine\ny = mine.tree_map(f, x)\n",
    "a name through another module": (
        "import jax\nimport compat\ncompat.tree_map = jax.jit\ny = compat.tree_map(f, x)\n"
    ),
    "jax that is rebound": "import jax\ndef f(jax, x):\n    return jax.tree_map(abs, x)\n",
    "what a version guards": (
        "import jax\ntree_map = jax.tree_map if hasattr(jax, 'tree_map') else jax.tree.map\n"
    ),
    "what an except looks after": (
        "try:\n    from jax import shard_map\nexcept ImportError:\n"
        "    from jax.experimental.shard_map import shard_map\n"
    ),
    "a suppressed line": "import jax\ny = jax.tree_map(abs, x)  # noqa: PMX519\n",
    "strings, comments and docstrings": (
        '"""Uses jax.tree_map."""\nimport jax\n# jax.tree_map\nname = "jax.tree_map"\n'
    ),
    "what is assigned to": "import jax\njax.tree_map = jax.tree.map\n",
    "shard_map with auto": (
        "from jax.experimental.shard_map import shard_map\n"
        "f = shard_map(g, mesh, P(), P(), auto=frozenset({'x'}))\n"
    ),
    "shard_map with unknown options": (
        "from jax.experimental.shard_map import shard_map\nf = shard_map(g, mesh, **options)\n"
    ),
    "shard_map that is passed on": (
        "from jax.experimental.shard_map import shard_map\nf = wrap(shard_map)\n"
        "g = shard_map(g, mesh, P(), P())\n"
    ),
    "a flag in a list": (
        'import jax, subprocess\nsubprocess.run(["a", "--jax_pmap_no_rank_reduction=0"])\n'
    ),
    "names without a plain replacement": (
        "import jax\nx = jax.ops.index_update(x, jax.ops.index[0], 1)\nfrom jax.util import a\n"
    ),
    "an import inside a function that would need one at the top": (
        "def f():\n    from jax import random\n    return isinstance(k, random.KeyArray)\n"
    ),
    "pjit that is passed on": (
        "from jax.experimental.pjit import pjit\nf = wrap(pjit)\ng = pjit(g, donate_argnums=0)\n"
    ),
    "pjit with options of older releases": (
        "from jax.experimental.pjit import pjit\nf = pjit(g, in_axis_resources=None)\n"
    ),
    "a mesh that a with statement binds": (
        "import jax\nwith jax.sharding.Mesh(d, 'i') as mesh:\n    pass\n"
    ),
    "a mesh context that the file reads": (
        "import jax\nfrom jax.interpreters import pxla\nmesh = jax.sharding.Mesh(d, 'i')\n"
        "with mesh:\n    print(pxla.thread_resources.env.physical_mesh)\n"
    ),
    "axis_shapes in a call of unknown options": (
        "import jax\nm = jax.make_mesh(axis_shapes=(8,), **options)\n"
    ),
    "axis_shapes in parentheses of its own": (
        "import jax\nm = jax.make_mesh(axis_shapes=((8,)), axis_names=('i',), axis_types=t)\n"
    ),
    "axis_shapes of another function": "import jax\nm = make_mesh(axis_shapes=(8,))\n",
    "make_mesh with its types by position": (
        "import jax\nm = jax.make_mesh((8,), ('i',), (jax.sharding.AxisType.Auto,))\n"
    ),
    "pvary that is passed on": "import jax\nf = jax.tree.map(jax.lax.pvary, x)\n",
    "a jit with options around a pmap": "import jax\nf = jax.jit(jax.pmap(g), donate_argnums=0)\n",
}


@pytest.mark.parametrize("case", LEFT_ALONE)
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_fix_leaves_alone(case, unsafe):
    assert fixed(LEFT_ALONE[case], unsafe=unsafe) == LEFT_ALONE[case]


SAFE = {
    "PMX503": ("import jax\nf = jax.jit(jax.pmap(g))\n", "import jax\nf = jax.pmap(g)\n"),
    "PMX515": (
        "import jax\njax.config.update('jax_pmap_no_rank_reduction', False)\nx = 1\n",
        "import jax\nx = 1\n",
    ),
    "PMX515 alone in a block": (
        "import jax\nif x:\n    jax.config.jax_pmap_no_rank_reduction = False\n",
        "import jax\nif x:\n    pass\n",
    ),
    "PMX516 function": (
        """
        from functools import partial
        from jax.experimental.shard_map import shard_map
        f = shard_map(g, mesh, in_specs=P("i"), out_specs=P("i"), check_rep=False)
        f = shard_map(g, mesh,
            P("i"),
            P("i"), False)
        @partial(shard_map, mesh=mesh, in_specs=P("i"),
                 check_rep=False, out_specs=P("i"))
        def h(x): return x
        """,
        """
        from functools import partial
        from jax import shard_map
        f = shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
        f = shard_map(g, mesh=mesh,
            in_specs=P("i"),
            out_specs=P("i"), check_vma=False)
        @partial(shard_map, mesh=mesh, in_specs=P("i"),
                 check_vma=False, out_specs=P("i"))
        def h(x): return x
        """,
    ),
    "PMX516 module": (
        "from jax.experimental import shard_map as s\nf = s.shard_map(g, m, P(), P())\n",
        "from jax import shard_map as s\nf = s(g, mesh=m, in_specs=P(), out_specs=P())\n",
    ),
    "PMX516 in full": (
        "import jax\nf = jax.experimental.shard_map.shard_map(g, m, P(), P())\n",
        "import jax\nf = jax.shard_map(g, mesh=m, in_specs=P(), out_specs=P())\n",
    ),
    "PMX517": (
        "from jax.experimental.maps import Mesh\n",
        "from jax.sharding import Mesh\n",
    ),
    "PMX518": (
        "import jax\nfrom jax import host_id, jit\nprint(host_id(), jax.host_count())\n",
        "import jax\nfrom jax import process_index as host_id, jit\n"
        "print(host_id(), jax.process_count())\n",
    ),
    "PMX519 trees": (
        "import jax as j\ny = j.tree_map(lambda x: j.tree_leaves(x), x)\n",
        "import jax as j\ny = j.tree.map(lambda x: j.tree.leaves(x), x)\n",
    ),
    "PMX519 imported trees": (
        "from jax import jit, tree_map, tree_leaves as tl\n",
        "from jax import jit\nfrom jax.tree_util import tree_map, tree_leaves as tl\n",
    ),
    "PMX519 in parentheses": (
        "def f():\n    from jax import (\n        tree_map,\n        jit,  # why\n    )\n",
        "def f():\n    from jax import (\n        jit,  # why\n    )\n"
        "    from jax.tree_util import tree_map\n",
    ),
    "PMX519 several on a line": (
        "from jax import tree_map; x = 1\n",
        "from jax.tree_util import tree_map; x = 1\n",
    ),
    "PMX519 with an import of its own": (
        'import jax\nimport os\np = jax.core.Primitive("p")\n',
        'import jax\nimport jax.extend.core\nimport os\np = jax.extend.core.Primitive("p")\n',
    ),
    "PMX519 a module": (
        "import jax.experimental.optimizers\nfrom jax.experimental import stax\n"
        "o = jax.experimental.optimizers.sgd(1)\n",
        "import jax.example_libraries.optimizers\nfrom jax.example_libraries import stax\n"
        "o = jax.example_libraries.optimizers.sgd(1)\n",
    ),
    "PMX519 config": (
        "from jax.config import config\nconfig.update('jax_enable_x64', True)\n",
        "from jax import config\nconfig.update('jax_enable_x64', True)\n",
    ),
    "PMX519 an annotation": (
        "import jax.numpy as jnp\ndef f(x: jnp.DeviceArray) -> 'X':\n    return x\n",
        "import jax.numpy as jnp\nimport jax\ndef f(x: jax.Array) -> 'X':\n    return x\n",
    ),
    "PMX519 use_mesh in a with": (
        "import jax\nwith jax.sharding.use_mesh(m), open(f):\n    pass\n",
        "import jax\nwith jax.set_mesh(m), open(f):\n    pass\n",
    ),
    "PMX519 use_mesh that is imported": (
        "from jax.sharding import use_mesh\nwith use_mesh(m):\n    pass\n",
        "from jax import set_mesh as use_mesh\nwith use_mesh(m):\n    pass\n",
    ),
    "PMX519 pvary": (
        "import jax\ny = jax.lax.pvary(x, ('i',))\nz = jax.lax.pvary(x, axis_name='i')\n",
        "import jax\ny = jax.lax.pcast(x, ('i',), to=\"varying\")\n"
        "z = jax.lax.pcast(x, axis_name='i', to=\"varying\")\n",
    ),
    "PMX561": (
        """
        from functools import partial
        from jax.experimental.pjit import pjit
        @pjit
        def f(x): return x
        @partial(pjit, static_argnums=(1,))
        def g(x, n): return x
        h = pjit(f, donate_argnums=0)
        """,
        """
        from functools import partial
        from jax import jit
        @jit
        def f(x): return x
        @partial(jit, static_argnums=(1,))
        def g(x, n): return x
        h = jit(f, donate_argnums=0)
        """,
    ),
    "PMX561 beside a jit": (
        "from jax import jit\nfrom jax.experimental import pjit\nf = pjit.pjit(jit(g))\n",
        "from jax import jit\nfrom jax import jit as pjit\nf = pjit(jit(g))\n",
    ),
    "PMX561 in full": (
        "import jax\nimport jax.experimental.pjit\nf = jax.experimental.pjit.pjit(g)\n",
        "import jax\nimport jax\nf = jax.jit(g)\n",
    ),
    "PMX563": (
        "import jax\nm = jax.make_mesh(axis_shapes=(8,), axis_names=('i',), axis_types=t)\n",
        "import jax\nm = jax.make_mesh((8,), axis_names=('i',), axis_types=t)\n",
    ),
    "PMX563 behind other options": (
        "import jax\nm = jax.make_mesh(axis_names=('i',), axis_shapes=(8,), axis_types=t)\n",
        "import jax\nm = jax.make_mesh((8,), axis_names=('i',), axis_types=t)\n",
    ),
    "windows line ends and other encodings": (
        "# coding: latin-1\r\nimport jax\r\ny = jax.tree_map(f, 'e')\r\n",
        "# coding: latin-1\r\nimport jax\r\ny = jax.tree.map(f, 'e')\r\n",
    ),
}
UNSAFE = {
    "PMX511": (
        "import jax\nx = jax.device_put_replicated(x, devices)\n",
        "import jax\nx = jax.device_put("
        "jax.tree.map(lambda x: jax.numpy.stack([x] * len(devices)), x), "
        'jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("i",)), '
        'jax.sharding.PartitionSpec("i")))\n',
    ),
    "PMX512": (
        "import jax\nx = jax.device_put_sharded(xs, jax.local_devices())\n",
        "import jax\nx = jax.device_put(jax.tree.map(lambda *x: jax.numpy.stack(x), *xs), "
        'jax.sharding.NamedSharding(jax.sharding.Mesh(jax.local_devices(), ("i",)), '
        'jax.sharding.PartitionSpec("i")))\n',
    ),
    "PMX514": (
        'import os\nos.environ["JAX_PMAP_SHMAP_MERGE"] = "0"\nimport jax\n',
        "import os\nimport jax\n",
    ),
    "PMX519": (
        "import jax\nis_key = isinstance(k, jax.random.KeyArray)\n",
        "import jax\nis_key = isinstance(k, jax.Array)\n",
    ),
    "PMX519 use_mesh outside of a with": (
        "import jax\nscope = jax.sharding.use_mesh(m)\n",
        "import jax\nscope = jax.set_mesh(m)\n",
    ),
    "PMX564": (
        "import jax\nm = jax.make_mesh((8,), ('i',))\n",
        "import jax\nm = jax.make_mesh((8,), ('i',), axis_types=(jax.sharding.AxisType.Auto,))\n",
    ),
    "PMX561 with shardings": (
        "from jax.experimental.pjit import pjit\nf = pjit(g, P(), out_shardings=None)\n",
        "from jax import jit\nf = jit(g, in_shardings=P(), out_shardings=None)\n",
    ),
    "PMX562": (
        """
        from jax.sharding import Mesh
        class T:
            def __init__(self, devices):
                self.mesh = Mesh(devices, ("i",))
            def run(self):
                with self.mesh, open("log"):
                    pass
        """,
        """
        from jax.sharding import Mesh
        import jax
        class T:
            def __init__(self, devices):
                self.mesh = Mesh(devices, ("i",))
            def run(self):
                with jax.set_mesh(self.mesh), open("log"):
                    pass
        """,
    ),
    "PMX531": (
        "import jax, jax.numpy as jnp\nfor i in jnp.arange(jax.device_count()):\n    print(y[i])\n",
        "import jax, jax.numpy as jnp\nfor i in range(jax.device_count()):\n    print(y[i])\n",
    ),
    "PMX551": (
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(p, b):
            return jax.lax.pmean(jax.grad(loss)(p, b), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        """,
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(p, b):
            return jax.lax.pmean(jax.grad(loss)(p, b), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=False)
        """,
    ),
    "PMX552": (
        """
        import jax
        mesh = jax.make_mesh(
            (4, 2),
            ("i", "j"),
        )
        f = jax.shard_map(g, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
        """,
        """
        import jax
        mesh = jax.make_mesh(
            (4, 2),
            ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2,
        )
        f = jax.shard_map(g, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
        """,
    ),
}


@pytest.mark.parametrize("case", SAFE)
def test_a_safe_fix(case):
    assert_fixed(*SAFE[case])


@pytest.mark.parametrize("case", UNSAFE)
def test_an_unsafe_fix_is_made_only_when_asked_for(case):
    before, after = UNSAFE[case]
    assert fixed(before) == textwrap.dedent(before)
    assert_fixed(before, after, unsafe=True)


def test_every_rule_with_a_fix_says_how_safe_it_is():
    for code in {case[:6] for case in [*SAFE, *UNSAFE] if case.startswith("PMX")}:
        safety = all_rules()[code].page().partition("**Safety.**")[2].partition("**Guide")[0]
        assert "fix" in safety, code


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
