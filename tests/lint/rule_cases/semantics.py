"""Programs for the rules PMX54x and 55x, what means something else today."""

# Programs with ``# here`` on each line that a rule marks, and on no other.
MARKED = {
    "PMX541 in a tuple and in in_axes": (
        "PMX541",
        """
        import jax
        a = jax.pmap(g, in_axes=(0, -1))  # here
        b = jax.pmap(g, out_axes=(0, {"x": -2}))  # here
        c = jax.pmap(g, out_axes=1)
        """,
    ),
    "PMX541 through a partial": (
        "PMX541",
        """
        import functools, jax
        @functools.partial(jax.pmap, out_axes=-1)  # here
        def f(x): return x
        """,
    ),
    "PMX542 in a loop": (
        "PMX542",
        """
        import jax
        step = jax.pmap(g, donate_argnums=0)
        def run(state, xs):
            for x in xs:
                out = step(state, x)  # here
        """,
    ),
    "PMX542 attribute": (
        "PMX542",
        """
        import jax
        class T:
            def __init__(self):
                self.step = jax.pmap(g, donate_argnums=(0,))
            def run(self, x):
                new = self.step(self.state, x)
                print(self.state)  # here
                self.state = new
        """,
    ),
    "PMX542 not by what a base class maps": (
        "PMX542",
        """
        import jax
        class Base:
            def __init__(self):
                self.step = jax.pmap(g, donate_argnums=(1,))
        class Own(Base):
            def __init__(self):
                self.step = jax.pmap(g, donate_argnums=(0,))
            def run(self, state, x):
                for _ in range(3):
                    state = self.step(state, x)
        """,
    ),
    "PMX542 by what a base class maps": (
        "PMX542",
        """
        import jax
        class Base:
            def __init__(self):
                self.step = jax.pmap(g, donate_argnums=(1,))
        class Own(Base):
            def run(self, state, x):
                for _ in range(3):
                    state = self.step(state, x)  # here
        """,
    ),
    "PMX542 not when bound anew": (
        "PMX542",
        """
        import jax
        step = jax.pmap(g, donate_argnums=(0, 1))
        def run(state, opt, xs):
            for x in xs:
                state, opt = step(state, opt, x)
            return state, opt
        """,
    ),
    "PMX542 not for shapes": (
        "PMX542",
        """
        import jax
        step = jax.pmap(g, donate_argnums=0)
        def run(state):
            new = step(state)
            return new, state.shape, state["w"].dtype, state.keys()
        """,
    ),
    "PMX542 not for other arguments": (
        "PMX542",
        """
        import jax
        step = jax.pmap(g, donate_argnums=0)
        def run(state, batch):
            state = step(state, batch)
            return state, batch
        """,
    ),
    "PMX542 not after a return": (
        "PMX542",
        """
        import jax
        step = jax.pmap(g, donate_argnums=0)
        def run(state, fast):
            if fast:
                return step(state)
            return state
        """,
    ),
    "PMX551 tree_map and value_and_grad": (
        "PMX551",
        """
        import jax
        from functools import partial
        from jax.sharding import PartitionSpec as P
        @jax.jit
        @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("i")), out_specs=(P(), P()))
        def step(params, batch):
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            grads = jax.tree.map(lambda g: jax.lax.pmean(g, "i"), grads)  # here
            return loss, grads
        """,
    ),
    "PMX551 psum": (
        "PMX551",
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(params, batch):
            (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch)
            return jax.lax.psum(grads, axis_name="i")  # here
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        """,
    ),
    "PMX551 of a partial and a method": (
        "PMX551",
        """
        import functools, jax
        from jax.sharding import PartitionSpec as P
        def step(config, params, batch):
            return jax.lax.pmean(jax.grad(loss)(params, batch), "i")  # here
        f = jax.shard_map(
            functools.partial(step, {}), mesh=mesh, in_specs=(P(), P("i")), out_specs=P()
        )
        class Trainer:
            def __init__(self, mesh):
                self.f = jax.jit(
                    jax.shard_map(self.step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
                )
            def step(self, params, batch):
                grads = jax.grad(self.loss)(params, batch)
                return jax.lax.psum(grads, "i")  # here
        """,
    ),
    "PMX551 not of a partial's other argument": (
        "PMX551",
        """
        import functools, jax
        from jax.sharding import PartitionSpec as P
        def step(params, other, batch):
            return jax.lax.pmean(jax.grad(loss)(batch, other), "i")
        f = jax.shard_map(
            functools.partial(step, 1), mesh=mesh, in_specs=(P(), P("i")), out_specs=P()
        )
        """,
    ),
    "PMX551 not with a mean in the loss": (
        "PMX551",
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(params, batch):
            def loss(p):
                return jax.lax.pmean(model(p, batch), "i")
            return jax.lax.pmean(jax.grad(loss)(params), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        """,
    ),
    "PMX551 not for varying parameters": (
        "PMX551",
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(params, batch):
            return jax.lax.pmean(jax.grad(loss)(params, batch), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P())
        """,
    ),
    "PMX551 not when made varying": (
        "PMX551",
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(params, batch):
            params = jax.lax.pcast(params, "i", to="varying")
            return jax.lax.pmean(jax.grad(loss)(params, batch), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        """,
    ),
    "PMX551 not of the data's gradient": (
        "PMX551",
        """
        import jax
        from jax.sharding import PartitionSpec as P
        def step(params, batch):
            return jax.lax.pmean(jax.grad(loss, argnums=1)(params, batch), "i")
        f = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        """,
    ),
    "PMX552 not of Mesh": (
        "PMX552",
        """
        import jax
        from jax.sharding import Mesh, PartitionSpec as P
        mesh = Mesh(jax.devices(), ("i",))
        f = jax.shard_map(g, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        """,
    ),
    "PMX552 not without a shard_map": (
        "PMX552",
        """
        import jax
        mesh = jax.make_mesh((8,), ("i",))
        """,
    ),
    "PMX553 spellings": (
        "PMX553",
        """
        import jax, numpy as np
        n = jax.process_count()
        a = jax.make_mesh((n,), ("batch",))  # here
        b = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("batch",))  # here
        c = jax.make_mesh((n, jax.local_device_count()), ("host", "device"))
        d = jax.make_mesh((jax.device_count(),), ("batch",))
        """,
    ),
}

# The same, for fixes that are made only with --unsafe-fixes.
FIXED_UNSAFELY = {
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
