"""What the rules say beyond their pages' examples, and what they leave alone."""

import importlib

import pytest

from reading import codes, findings, marked

CASES = {
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


@pytest.mark.parametrize("case", CASES)
def test_a_rule_marks_these_lines_and_no_others(tmp_path, case):
    code, text = CASES[case]
    found, expected = marked(tmp_path, code, text, confidence="medium")
    assert found == expected


def test_a_lowered_map_in_one_process_has_low_confidence(tmp_path):
    text = "import jax\nc = jax.pmap(lambda x: x).lower(x).compile()\n"
    (found,) = findings(tmp_path, program=text, select=("PMX504",))
    assert str(found.confidence) == "low"


def test_a_lowered_map_of_ours_is_fine(tmp_path):
    text = (
        "import jax, pmapx\njax.process_index()\nc = pmapx.pmap(lambda x: x).lower(x).compile()\n"
    )
    assert codes(tmp_path, text) == []


def test_a_mesh_is_reported_where_it_is_made_though_used_elsewhere(tmp_path):
    found = findings(
        tmp_path,
        files={
            "meshes.py": 'import jax\nmesh = jax.make_mesh((8,), ("i",))\n',
            "train.py": (
                "import jax\nfrom meshes import mesh\n"
                "f = jax.shard_map(g, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())\n"
            ),
        },
        select=("PMX552",),
    )
    assert [f.place.path.rpartition("/")[2] for f in found] == ["meshes.py"]


def test_how_a_use_is_migrated_follows_its_options(tmp_path):
    text = (
        "import jax\nf = jax.pmap(g, 'i', in_axes=(0, None), out_axes=None, donate_argnums=0,"
        " static_broadcasted_argnums=2)\n"
    )
    (found,) = findings(tmp_path, program=text, select=("PMX501",))
    assert found.hint.startswith(
        "becomes jax.jit(jax.shard_map(one_row(g), mesh=mesh, in_specs=(P('i'), P()), "
        "out_specs=P(), check_vma=False), donate_argnums=0, static_argnums=2), where one_row takes "
        "the mapped axis"
    )


def test_names_in_the_table_are_gone_from_jax_and_their_replacements_are_there():
    jax = pytest.importorskip("jax", "0.10")
    from pmapx._src.lint.rules.removed.removed_names import REPLACEMENTS

    def exists(name):
        parts = name.split(".")
        found = jax
        for position, part in enumerate(parts[1:], start=2):
            if not hasattr(found, part):
                try:
                    importlib.import_module(".".join(parts[:position]))
                except ImportError:
                    return False
            found = getattr(found, part)
        return True

    is_plain = [
        new for new in REPLACEMENTS.values() if all(p.isidentifier() for p in new.split("."))
    ]
    assert [old for old in REPLACEMENTS if exists(old)] == []
    assert [new for new in is_plain if not exists(new)] == []


def test_a_file_whose_calls_are_not_all_followed_is_reported(tmp_path, monkeypatch):
    from pmapx._src.analysis import module

    monkeypatch.setattr(module, "STATEMENTS", 5)
    text = "import jax\nstep = jax.pmap(f)\ndef same(y):\n    return y\n"
    text += "x = same(step(x))\nx = same(1)\n" * 10
    found = findings(tmp_path, program=text, select=("PMX500",))
    assert [f.message.partition(":")[0] for f in found] == ["checked in part"]
