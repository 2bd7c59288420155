"""Programs for the rules PMX53x, placement around the call."""

# Programs with ``# here`` on each line that a rule marks, and on no other.
MARKED = {
    "PMX532 in a function": (
        "PMX532",
        """
        import jax, jax.numpy as jnp, functools
        @functools.partial(jax.pmap, axis_name="i")
        def _sum(x):
            return jax.lax.psum(x, "i")
        def barrier():
            jax.device_get(_sum(jnp.ones((jax.local_device_count(),))))  # here
        """,
    ),
    "PMX532 not where the sum is used": (
        "PMX532",
        """
        import jax, jax.numpy as jnp
        total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones(8))
        count = total.sum()
        """,
    ),
    "PMX532 not of data": (
        "PMX532",
        """
        import jax
        jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(data).block_until_ready()
        """,
    ),
    "PMX532 whose count is checked": (
        "PMX532",
        """
        import jax, jax.numpy as jnp
        def meet():
            x = jnp.ones([jax.local_device_count()])
            x = jax.device_get(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(x))  # here
            if x[0] != jax.device_count():
                raise ValueError(f"only {x}")
        """,
    ),
    "PMX532 not when the count is used": (
        "PMX532",
        """
        import jax, jax.numpy as jnp
        def count():
            x = jnp.ones([jax.local_device_count()])
            x = jax.device_get(jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(x))
            if x[0] != jax.device_count():
                raise ValueError(f"only {x}")
            return x[0]
        """,
    ),
    "PMX535 operators, comparisons and functions": (
        "PMX535",
        """
        import jax, jax.numpy as jnp
        devices = jax.devices()
        first = devices[0]
        scale = jax.device_put(2.0, first)
        @jax.pmap
        def step(x):
            return x * x
        losses = step(batch)
        mean = losses / scale  # here
        other = scale - losses  # here
        is_large = losses > scale  # here
        total = jnp.dot(losses, scale)  # here
        total = jax.lax.add(scale, losses)  # here
        losses += jax.device_put(1.0, device=jax.local_devices()[-1])  # here
        """,
    ),
    "PMX535 not of what is uncommitted, transferred, read, unknown or one row": (
        "PMX535",
        """
        import jax, jax.numpy as jnp, numpy as np
        first = jax.devices()[0]
        scale = jax.device_put(2.0, first)
        losses = jax.pmap(lambda x: x * x)(batch)
        a = losses / jax.device_put(2.0)
        b = losses / jax.device_put(2.0, sharding)
        c = jax.device_put(losses, first) / scale
        d = np.asarray(losses) / np.asarray(scale)
        e = jax.device_get(losses) / scale
        f = losses[0] / scale
        g = unknown / scale
        h = losses / 2.0
        i = losses / jnp.ones(())
        j = losses is scale
        k = scale / scale
        l = (losses if flag else 1.0) / scale
        m = print(losses, scale)
        for device in jax.devices():
            n = losses / jax.device_put(1.0, device)
        """,
    ),
    "PMX534 spellings": (
        "PMX534",
        """
        import jax, jax.numpy as jnp
        n = len(jax.local_devices())
        a = jnp.stack([x for _ in range(n)])  # here
        b = jnp.broadcast_to(x, (n,) + x.shape)  # here
        c = jnp.stack(n * [x])  # here
        d = jnp.tile(x, (n, 1))  # here
        """,
    ),
    "PMX534 not other counts": (
        "PMX534",
        """
        import jax, jax.numpy as jnp
        n = jax.local_device_count()
        a = jnp.stack([x] * 3)
        b = jnp.broadcast_to(x, (batch, n))
        c = jnp.stack([f(i) for i in range(n)])
        """,
    ),
}
