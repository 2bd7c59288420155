"""Programs for the rules PMX50x, uses of pmap."""

# Programs with ``# here`` on each line that a rule marks, and on no other.
MARKED = {
    "PMX502 call in a mapped function": (
        "PMX502",
        """
        import jax
        inner = jax.pmap(lambda x: x, axis_name="j")
        def outer(x):
            return inner(x)  # here
        f = jax.pmap(outer, axis_name="i")
        """,
    ),
    "PMX502 decorators": (
        "PMX502",
        """
        import jax
        from functools import partial
        @partial(jax.pmap, axis_name="i")  # here
        @partial(jax.pmap, axis_name="j")
        def f(x): return x
        """,
    ),
    "PMX502 not for a method of the same name": (
        "PMX502",
        """
        import jax
        class T:
            def __init__(self):
                self.step = jax.pmap(self.step)
            def step(self, x):
                return x
            def run(self, x):
                return self.step(x)
        """,
    ),
    "PMX502 not where a function may ask whether it is mapped": (
        "PMX502",
        """
        import functools, jax
        def staged(method):
            mapped = jax.pmap(method)
            def decorated(self, x):
                if self.is_staging:
                    return method(self, x)
                else:
                    return mapped(self, x)
            return decorated
        class T:
            @staged
            def inner(self, x):
                return x
            @staged
            def outer(self, x):
                return self.inner(x)
        """,
    ),
    "PMX503 call in a jitted function": (
        "PMX503",
        """
        import jax
        step = jax.pmap(lambda x: x)
        @jax.jit
        def run(x):
            return step(x)  # here
        """,
    ),
    "PMX503 through a helper": (
        "PMX503",
        """
        import jax
        step = jax.pmap(lambda x: x)
        def helper(x):
            return step(x)  # here
        run = jax.jit(lambda x: helper(x))
        """,
    ),
    "PMX503 not beside a jit": (
        "PMX503",
        """
        import jax
        step = jax.pmap(lambda x: x)
        double = jax.jit(lambda x: 2 * x)
        def run(x):
            return double(step(x))
        """,
    ),
    "PMX504 in two steps": (
        "PMX504",
        """
        import jax
        first = jax.process_index() == 0
        step = jax.pmap(lambda x: x)
        lowered = step.lower(x)
        compiled = lowered.compile()  # here
        """,
    ),
}

# Programs that no fix changes.
LEFT_ALONE = {
    "a jit with options around a pmap": "import jax\nf = jax.jit(jax.pmap(g), donate_argnums=0)\n",
}

# Programs before and after the fix.
FIXED = {
    "PMX503": ("import jax\nf = jax.jit(jax.pmap(g))\n", "import jax\nf = jax.pmap(g)\n"),
}
