"""Programs for the rules PMX56x, meshes as later releases of JAX have them."""

LEFT_ALONE = {
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
}

FIXED = {
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
}

FIXED_UNSAFELY = {
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
        import jax
        from jax.sharding import Mesh
        class T:
            def __init__(self, devices):
                self.mesh = Mesh(devices, ("i",))
            def run(self):
                with jax.set_mesh(self.mesh), open("log"):
                    pass
        """,
    ),
}
