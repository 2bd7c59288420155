"""Programs for the rules PMX52x and 531, shards that are read."""

# Programs with ``# here`` on each line that a rule marks, and on no other.
MARKED = {
    "PMX531 of unknown x": (
        "PMX531",
        """
        import jax, jax.numpy as jnp
        for i in jnp.arange(jax.local_device_count()):
            print(x[i])  # here
        """,
    ),
    "PMX531 comprehension": (
        "PMX531",
        """
        import jax, jax.numpy as jnp
        y = jax.pmap(lambda v: v + 1)(x)
        rows = [y[i] for i in jnp.arange(8)]  # here
        """,
    ),
    "PMX531 not with range": (
        "PMX531",
        """
        import jax
        y = jax.pmap(lambda v: v + 1)(x)
        rows = [y[i] for i in range(8)]
        """,
    ),
    "PMX531 not of other arrays": (
        "PMX531",
        """
        import jax, jax.numpy as jnp
        step = jax.pmap(f)
        rows = [table[i] for i in jnp.arange(8)]
        """,
    ),
}

# The same, for fixes that are made only with --unsafe-fixes.
FIXED_UNSAFELY = {
    "PMX531": (
        "import jax, jax.numpy as jnp\nfor i in jnp.arange(jax.device_count()):\n    print(y[i])\n",
        "import jax, jax.numpy as jnp\nfor i in range(jax.device_count()):\n    print(y[i])\n",
    ),
}
