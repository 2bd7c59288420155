"""Programs for the rules PMX51x, names and flags that JAX removed."""

# Programs with ``# here`` on each line that a rule marks, and on no other.
MARKED = {
    "PMX510 not another library's": (
        "PMX510",
        """
        import jax, numpy as np
        from jax import numpy as jnp
        def perplexity(loss):
            low = np.clip(loss, a_min=0, a_max=1)
            return jnp.clip(loss, max=1e4) + jnp.clip(low, a_max=1e4)  # here
        """,
    ),
    "PMX514 environment": (
        "PMX514",
        """
        import os
        os.environ["JAX_PMAP_SHMAP_MERGE"] = "0"  # here
        import jax
        """,
    ),
    "PMX514 flag": (
        "PMX514",
        """
        import jax, subprocess
        subprocess.run(["python", "train.py", "--jax_pmap_shmap_merge=false"])  # here
        """,
    ),
    "PMX514 not a docstring": (
        "PMX514",
        '''
        """Once needed jax_pmap_shmap_merge."""
        import jax
        ''',
    ),
    "PMX516 as a module": (
        "PMX516",
        """
        import jax
        from jax.experimental import shard_map  # here
        f = shard_map.shard_map(g, mesh, in_specs=P(), out_specs=P())
        """,
    ),
    "PMX516 not where a version is asked": (
        "PMX516",
        """
        import jax
        try:
            from jax import shard_map
        except ImportError:
            from jax.experimental.shard_map import shard_map
        """,
    ),
    "PMX517 xmap": (
        "PMX517",
        """
        import jax
        from jax.experimental import maps  # here
        f = maps.xmap(g)
        """,
    ),
    "PMX517 not again at what a variable holds": (
        "PMX517",
        """
        import jax
        env = jax.experimental.maps.thread_resources.env  # here
        print(env.physical_mesh.shape)
        """,
    ),
    "PMX518 through xla_bridge": (
        "PMX518",
        """
        import jax
        from jax.lib import xla_bridge
        print(xla_bridge.host_id())  # here
        """,
    ),
    "PMX518 not a method of that name": (
        "PMX518",
        """
        import jax
        print(cluster.host_id())
        """,
    ),
    "PMX519 not where it is asked for": (
        "PMX519",
        """
        import jax
        tree_map = jax.tree_map if hasattr(jax, "tree_map") else jax.tree.map
        """,
    ),
    "PMX519 names that install() puts back": (
        "PMX519",
        """
        import jax
        from jax.config import config  # here
        from jax.core import Primitive  # here
        from jax.experimental import optimizers  # here
        jax.config.update("jax_enable_x64", True)
        y = jax.ops.index_update(x, jax.ops.index[0], 1.0)  # here
        z = jax.ops.segment_sum(x, i)
        from jax.util import safe_map  # here
        is_key = isinstance(k, jax.random.PRNGKeyArray)  # here
        tracer = jax.core.Tracer
        """,
    ),
}

# Programs that no fix changes.
LEFT_ALONE = {
    "pvary that is passed on": "import jax\nf = jax.tree.map(jax.lax.pvary, x)\n",
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
}

# Programs before and after the fix.
FIXED = {
    "PMX510": (
        "import jax.numpy as jnp\ny = jnp.clip(x, a_min=0, a_max = 1)\n",
        "import jax.numpy as jnp\ny = jnp.clip(x, min=0, max = 1)\n",
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
    "PMX519 trees that are imported below as well": (
        "from jax import jit, tree_map\nimport os\nfrom jax.tree_util import tree_map\n",
        "from jax import jit\nimport os\nfrom jax.tree_util import tree_map\n",
    ),
    "PMX519 alone, and imported below as well": (
        "from jax import tree_map\nfrom jax.tree_util import tree_map\n",
        "from jax.tree_util import tree_map\n",
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
    "PMX519 a module of which all that is used has moved": (
        "from jax import core, jit\n\n\ndef f(x: core.Jaxpr) -> core.Var:\n    pass\n",
        "from jax import jit\nfrom jax.extend import core\n\n\n"
        "def f(x: core.Jaxpr) -> core.Var:\n    pass\n",
    ),
    "PMX519 a module of which some has moved": (
        "import jax\nfrom jax import core\n\n\ndef f(x: core.Jaxpr) -> core.Tracer:\n    pass\n",
        "import jax\nimport jax.extend.core\nfrom jax import core\n\n\n"
        "def f(x: jax.extend.core.Jaxpr) -> core.Tracer:\n    pass\n",
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
        "import jax\nimport jax.numpy as jnp\ndef f(x: jax.Array) -> 'X':\n    return x\n",
    ),
    "windows line ends and other encodings": (
        "# coding: latin-1\r\nimport jax\r\ny = jax.tree_map(f, 'e')\r\n",
        "# coding: latin-1\r\nimport jax\r\ny = jax.tree.map(f, 'e')\r\n",
    ),
}

# The same, for fixes that are made only with --unsafe-fixes.
FIXED_UNSAFELY = {
    "PMX519 use_mesh outside of a with": (
        "import jax\nscope = jax.sharding.use_mesh(m)\n",
        "import jax\nscope = jax.set_mesh(m)\n",
    ),
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
}
