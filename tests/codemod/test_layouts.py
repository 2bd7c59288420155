# ruff: noqa: E501 -- texts as they are written
"""Maps that are written out where they stand, and those that are not."""

import re
import textwrap

import pytest
from migrated import migrate, rewritten
from pmap_programs import COUNTED, HEAD, PROGRAMS, WRITTEN_OUT

TEXTS = {
    "a call": (
        "step = jax.pmap(f, axis_name='b', donate_argnums=(0,))  # why\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),), ('b',), axis_types=(jax.sharding.AxisType.Auto,)
        )
        step = jax.jit(
            jax.shard_map(
                lambda *args: jax.tree.map(
                    lambda x: jax.numpy.expand_dims(x, 0),
                    f(*jax.tree.map(lambda x: x[0], args)),
                ),
                mesh=mesh,
                in_specs=jax.P('b'),
                out_specs=jax.P('b'),
                check_vma=False,
            ),
            donate_argnums=(0,),
        )  # why
        """,
    ),
    "axes": (
        "step = jax.pmap(f, 'b', in_axes=(None, 1, {'x': 0}), out_axes=(None, 0))\n",
        """\


        def sharded_f(arg0, arg1, arg2):
            arg1 = jax.tree.map(lambda x: x[:, 0], arg1)
            arg2 = {'x': jax.tree.map(lambda x: x[0], arg2['x'])}
            result0, result1 = f(arg0, arg1, arg2)
            return result0, jax.tree.map(lambda x: x[None], result1)


        mesh = jax.make_mesh(
            (jax.device_count(),), ('b',), axis_types=(jax.sharding.AxisType.Auto,)
        )
        step = jax.jit(
            jax.shard_map(
                sharded_f,
                mesh=mesh,
                in_specs=(jax.P(), jax.P(None, 'b'), {'x': jax.P('b')}),
                out_specs=(jax.P(), jax.P('b')),
                check_vma=False,
            ),
        )
        """,
    ),
    "a decorator": (
        "# above\n@jax.pmap  # beside\ndef g(x): return x\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),),
            ("devices",),
            axis_types=(jax.sharding.AxisType.Auto,),
        )


        # above
        @jax.jit
        @jax.shard_map(
            mesh=mesh,
            in_specs=jax.P("devices"),
            out_specs=jax.P("devices"),
            check_vma=False,
        )  # beside
        def g(x):
            x = jax.tree.map(lambda x: x[0], x)
            return jax.tree.map(lambda x: x[None], x)
        """,
    ),
    "a decorator in a class": (
        "class A:\n    @staticmethod\n    @functools.partial(jax.pmap, axis_name='i', in_axes=(0, None), donate_argnums=0)\n    def g(x, y): return x\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),), ('i',), axis_types=(jax.sharding.AxisType.Auto,)
        )


        class A:
            @staticmethod
            @functools.partial(jax.jit, donate_argnums=0)
            @jax.shard_map(
                mesh=mesh,
                in_specs=(jax.P('i'), jax.P()),
                out_specs=jax.P('i'),
                check_vma=False,
            )
            def g(x, y):
                x = jax.tree.map(lambda x: x[0], x)
                return jax.tree.map(lambda x: x[None], x)
        """,
    ),
    "in a function, on some devices": (
        "def main(f):\n    return [abs, jax.pmap(abs, devices=jax.devices()[:2])]\nmain(1)\n",
        """\
        def main(f):
            return [abs, jax.jit(
                jax.shard_map(
                    lambda *args: jax.tree.map(
                        lambda x: jax.numpy.expand_dims(x, 0),
                        abs(*jax.tree.map(lambda x: x[0], args)),
                    ),
                    mesh=jax.sharding.Mesh(
                        jax.devices()[:2],
                        ("devices",),
                        axis_types=(jax.sharding.AxisType.Auto,),
                    ),
                    in_specs=jax.P("devices"),
                    out_specs=jax.P("devices"),
                    check_vma=False,
                ),
            )]
        main(1)
        """,
    ),
    "comments inside": (
        "step = jax.pmap(\n    lambda x: (  # here\n        x + 1\n    ),  # the step\n    # the axis\n    axis_name='b',\n)  # why\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),), ('b',), axis_types=(jax.sharding.AxisType.Auto,)
        )
        step = jax.jit(
            # the step
            # the axis
            jax.shard_map(
                lambda *args: jax.tree.map(
                    lambda x: x[None],
                    (lambda x: (  # here
                        x + 1
                    ))(
                        *jax.tree.map(lambda x: x[0], args),
                    ),
                ),
                mesh=mesh,
                in_specs=jax.P('b'),
                out_specs=jax.P('b'),
                check_vma=False,
            ),
        )  # why
        """,
    ),
    "comments inside a decorator": (
        "# above\n@functools.partial(\n    jax.pmap,  # mapped\n    axis_name='i',  # why\n)\ndef g(x): return x\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),), ('i',), axis_types=(jax.sharding.AxisType.Auto,)
        )


        # above
        # mapped
        # why
        @jax.jit
        @jax.shard_map(
            mesh=mesh, in_specs=jax.P('i'), out_specs=jax.P('i'), check_vma=False
        )
        def g(x):
            x = jax.tree.map(lambda x: x[0], x)
            return jax.tree.map(lambda x: x[None], x)
        """,
    ),
    "what looks like a comment": (
        "step = jax.pmap(lambda x: named(x, 'a  # b'))\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),),
            ('devices',),
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        step = jax.jit(
            jax.shard_map(
                lambda x: jax.tree.map(
                    lambda x: x[None], named(jax.tree.map(lambda x: x[0], x), 'a  # b')
                ),
                mesh=mesh,
                in_specs=jax.P('devices'),
                out_specs=jax.P('devices'),
                check_vma=False,
            ),
        )
        """,
    ),
    "of several processes": (
        "batch = 64 // jax.process_count()\ndef main(x):\n    g = jax.pmap(abs, 'i', donate_argnums=0)\n    return g(x)\n",
        """\
        batch = 64 // jax.process_count()
        def main(x):
            mesh = jax.sharding.Mesh(
                sorted(jax.devices(), key=lambda device: device.process_index),
                ('i',),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            g = jax.jit(
                jax.shard_map(
                    lambda *args: jax.tree.map(
                        lambda x: jax.numpy.expand_dims(x, 0),
                        abs(*jax.tree.map(lambda x: x[0], args)),
                    ),
                    mesh=mesh,
                    in_specs=jax.P('i'),
                    out_specs=jax.P('i'),
                    check_vma=False,
                ),
                donate_argnums=0,
            )
            return multihost_utils.global_array_to_host_local_array(
                g(
                    multihost_utils.host_local_array_to_global_array(
                        x, mesh, jax.P('i')
                    ),
                ),
                mesh,
                jax.P('i'),
            )
        """,
    ),
    "of several processes, whose calls are not known": (
        "batch = 64 // jax.process_count()\ndef main():\n    return jax.pmap(lambda s, x: s * x, 'i', in_axes=(None, 0), donate_argnums=1)\n",
        """\
        batch = 64 // jax.process_count()
        def main():
            mesh = jax.sharding.Mesh(
                sorted(jax.devices(), key=lambda device: device.process_index),
                ('i',),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            return functools.partial(
                lambda jitted, s, x: multihost_utils.global_array_to_host_local_array(
                    jitted(
                        jax.tree.map(
                            lambda x: x
                            if isinstance(x, (int, float))
                            else multihost_utils.host_local_array_to_global_array(
                                x, mesh, jax.P()
                            ),
                            s,
                        ),
                        multihost_utils.host_local_array_to_global_array(
                            x, mesh, jax.P('i')
                        ),
                    ),
                    mesh,
                    jax.P('i'),
                ),
                jax.jit(
                    jax.shard_map(
                        lambda s, x: (s * x[0])[None],
                        mesh=mesh,
                        in_specs=(jax.P(), jax.P('i')),
                        out_specs=jax.P('i'),
                        check_vma=False,
                    ),
                    donate_argnums=1,
                ),
            )
        """,
    ),
    "state of several processes that is placed, and stays global": (
        "batch = 64 // jax.process_count()\ndef main(state, batches):\n    step = jax.pmap(f, 'i', in_axes=(None, 0), out_axes=(None, 0))\n    state = on_every_device(state)\n    for batch in batches:\n        state, loss = step(state, batch)\n",
        """\
        batch = 64 // jax.process_count()
        def main(state, batches):
            def sharded_f(state, batch):
                state, loss = f(state, jax.tree.map(lambda x: x[0], batch))
                return state, jax.tree.map(lambda x: x[None], loss)

            mesh = jax.sharding.Mesh(
                sorted(jax.devices(), key=lambda device: device.process_index),
                ('i',),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            step = jax.jit(
                jax.shard_map(
                    sharded_f,
                    mesh=mesh,
                    in_specs=(jax.P(), jax.P('i')),
                    out_specs=(jax.P(), jax.P('i')),
                    check_vma=False,
                ),
            )
            state = jax.device_put(state, jax.NamedSharding(mesh, jax.P()))
            for batch in batches:
                state, loss = step(
                    state,
                    multihost_utils.host_local_array_to_global_array(
                        batch, mesh, jax.P('i')
                    ),
                )
                loss = multihost_utils.global_array_to_host_local_array(
                    loss, mesh, jax.P('i')
                )
        """,
    ),
    "state of several processes, and more calls than are converted one by one": (
        "batch = 64 // jax.process_count()\ndef main(state, x):\n    step = jax.pmap(f, 'i', in_axes=(None, 0), out_axes=(None, 0, 0))\n"
        + "    state, a, b = step(state, x)\n" * 3,
        """\
        batch = 64 // jax.process_count()
        def main(state, x):
            def sharded_f(state, x):
                state, a, b = f(state, jax.tree.map(lambda x: x[0], x))
                return state, *jax.tree.map(lambda x: x[None], (a, b))

            mesh = jax.sharding.Mesh(
                sorted(jax.devices(), key=lambda device: device.process_index),
                ('i',),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            step = functools.partial(
                lambda jitted, state, x: (lambda a, b, c: (
                    a,
                    *multihost_utils.global_array_to_host_local_array(
                        (b, c), mesh, jax.P('i')
                    ),
                ))(*jitted(
                    *multihost_utils.host_local_array_to_global_array(
                        (state, x), mesh, (jax.P(), jax.P('i'))
                    ),
                )),
                jax.jit(
                    jax.shard_map(
                        sharded_f,
                        mesh=mesh,
                        in_specs=(jax.P(), jax.P('i')),
                        out_specs=(jax.P(), jax.P('i'), jax.P('i')),
                        check_vma=False,
                    ),
                ),
            )
            state, a, b = step(state, x)
            state, a, b = step(state, x)
            state, a, b = step(state, x)
        """,
    ),
    "a decorator of several processes": (
        "batch = 64 // jax.process_count()\n@functools.partial(jax.pmap, axis_name='i')\ndef g(x): return x + 1\n",
        """\
        batch = 64 // jax.process_count()
        mesh = jax.sharding.Mesh(
            sorted(jax.devices(), key=lambda device: device.process_index),
            ('i',),
            axis_types=(jax.sharding.AxisType.Auto,),
        )


        @lambda jitted: lambda *args: multihost_utils.global_array_to_host_local_array(
            jitted(
                *multihost_utils.host_local_array_to_global_array(
                    args, mesh, jax.P('i')
                ),
            ),
            mesh,
            jax.P('i'),
        )
        @jax.jit
        @jax.shard_map(
            mesh=mesh, in_specs=jax.P('i'), out_specs=jax.P('i'), check_vma=False
        )
        def g(x):
            x = x[0]
            return (x + 1)[None]
        """,
    ),
    "keywords of several processes, and a number": (
        "batch = 64 // jax.process_count()\ndef main(x):\n    g = jax.pmap(lambda s, x: s * x, 'i', in_axes=(None, 0))\n    return g(2.0, x=x)\n",
        """\
        batch = 64 // jax.process_count()
        def main(x):
            mesh = jax.sharding.Mesh(
                sorted(jax.devices(), key=lambda device: device.process_index),
                ('i',),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            g = jax.jit(
                jax.shard_map(
                    lambda s, x: (s * x[0])[None],
                    mesh=mesh,
                    in_specs=(jax.P(), jax.P('i')),
                    out_specs=jax.P('i'),
                    check_vma=False,
                ),
            )
            return multihost_utils.global_array_to_host_local_array(
                g(
                    2.0,
                    multihost_utils.host_local_array_to_global_array(
                        x, mesh, jax.P('i')
                    ),
                ),
                mesh,
                jax.P('i'),
            )
        """,
    ),
    "state and batch": (
        'def main(state, batches):\n    def step(state, batch):\n        """One step."""\n        state = state - jax.lax.pmean(batch.sum(), \'b\')\n        return state, batch.mean()\n\n    p_step = jax.pmap(step, \'b\', in_axes=(None, 0), out_axes=(None, 0))\n    for batch in batches:\n        state, loss = p_step(state, batch)\n',
        """\
        def main(state, batches):
            def step(state, batch):
                \"\"\"One step.\"\"\"
                batch = batch[0]
                state = state - jax.lax.pmean(batch.sum(), 'b')
                return state, batch.mean()[None]

            mesh = jax.make_mesh(
                (jax.device_count(),), ('b',), axis_types=(jax.sharding.AxisType.Auto,)
            )
            p_step = jax.jit(
                jax.shard_map(
                    step,
                    mesh=mesh,
                    in_specs=(jax.P(), jax.P('b')),
                    out_specs=(jax.P(), jax.P('b')),
                    check_vma=False,
                ),
            )
            for batch in batches:
                state, loss = p_step(state, batch)
        """,
    ),
    "a static argument": (
        "g = jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)\n",
        """\
        mesh = jax.make_mesh(
            (jax.device_count(),),
            ("devices",),
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        g = jax.jit(
            lambda x, n: jax.shard_map(
                lambda x: jax.tree.map(lambda x: x[None], x[0] * n),
                mesh=mesh,
                in_specs=jax.P("devices"),
                out_specs=jax.P("devices"),
                check_vma=False,
            )(x),
            static_argnums=1,
        )
        """,
    ),
    "a map that takes its function's name": (
        "def main(x):\n    def step(x):\n        return x + 1\n\n    step = jax.pmap(step)\n    return step(x), step(x)\n",
        """\
        def main(x):
            def step(x):
                x = x[0]
                return (x + 1)[None]

            mesh = jax.make_mesh(
                (jax.device_count(),),
                ("devices",),
                axis_types=(jax.sharding.AxisType.Auto,),
            )
            step = jax.jit(
                jax.shard_map(
                    step,
                    mesh=mesh,
                    in_specs=jax.P("devices"),
                    out_specs=jax.P("devices"),
                    check_vma=False,
                ),
            )
            return step(x), step(x)
        """,
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_of_a_map_that_is_written_out(tmp_path, case):
    before, expected = TEXTS[case]
    after = rewritten(tmp_path, f"import functools\nimport jax\n{COUNTED}{before}")[0].decode()
    assert after.endswith(COUNTED + textwrap.dedent(expected))


SIZED = {
    "nothing counts devices": (
        "def f(x): return x\ng = jax.pmap(f, 'i')\n",
        """\
        def f(x):
            x = jax.tree.map(lambda x: x[0], x)
            return jax.tree.map(lambda x: x[None], x)
        g = jax.jit(
            lambda x: jax.shard_map(
                f,
                mesh=jax.make_mesh(
                    (len(jax.tree.leaves(x)[0]),),
                    ('i',),
                    axis_types=(jax.sharding.AxisType.Auto,),
                ),
                in_specs=jax.P('i'),
                out_specs=jax.P('i'),
                check_vma=False,
            )(x),
        )
        """,
    ),
    "some of the devices": (
        COUNTED
        + "d = jax.local_devices()[:N]\ng = jax.pmap(lambda a, x: a * x, 'i', in_axes=(None, 1))\n",
        COUNTED
        + """\
        d = jax.local_devices()[:N]
        g = jax.jit(
            lambda a, x: jax.shard_map(
                lambda a, x: (a * x[:, 0])[None],
                mesh=jax.make_mesh(
                    (x.shape[1],), ('i',), axis_types=(jax.sharding.AxisType.Auto,)
                ),
                in_specs=(jax.P(), jax.P(None, 'i')),
                out_specs=jax.P('i'),
                check_vma=False,
            )(a, x),
        )
        """,
    ),
    "a decorator": (
        "@functools.partial(jax.pmap, axis_name='i', donate_argnums=0)\ndef g(x): return x + 1\n",
        """\
        @functools.partial(jax.jit, donate_argnums=0)
        def g(x):
            mesh = jax.make_mesh(
                (len(x),), ('i',), axis_types=(jax.sharding.AxisType.Auto,)
            )

            @jax.shard_map(
                mesh=mesh, in_specs=jax.P('i'), out_specs=jax.P('i'), check_vma=False
            )
            def per_device(x):
                x = x[0]
                return (x + 1)[None]

            return per_device(x)
        """,
    ),
    "a map that takes its function's name": (
        "def f(x): return x\nprint(f)\nf = jax.pmap(f, 'i', donate_argnums=0)\n",
        """\
        def f(x): return x
        print(f)
        f = jax.jit(
            lambda x, function=f: jax.shard_map(
                lambda *args: jax.tree.map(
                    lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args))
                ),
                mesh=jax.make_mesh(
                    (len(jax.tree.leaves(x)[0]),),
                    ('i',),
                    axis_types=(jax.sharding.AxisType.Auto,),
                ),
                in_specs=jax.P('i'),
                out_specs=jax.P('i'),
                check_vma=False,
            )(x),
            donate_argnums=0,
        )
        """,
    ),
    "keywords of who knows what": (
        "g = jax.pmap(f, 'i')\ny = g(x, **{'y': x})\n",
        """\


        def sharded_f(args, kwargs):
            args, kwargs = jax.tree.map(lambda x: x[0], (args, kwargs))
            y = f(*args, **kwargs)
            return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), y)


        g = jax.jit(
            lambda *args, **kwargs: jax.shard_map(
                sharded_f,
                mesh=jax.make_mesh(
                    (len(jax.tree.leaves((args, kwargs))[0]),),
                    ('i',),
                    axis_types=(jax.sharding.AxisType.Auto,),
                ),
                in_specs=jax.P('i'),
                out_specs=jax.P('i'),
                check_vma=False,
            )(args, kwargs),
        )
        y = g(x, **{'y': x})
        """,
    ),
}


@pytest.mark.parametrize("case", SIZED)
def test_a_mesh_has_as_many_devices_as_there_are_shards_where_these_may_be_fewer(tmp_path, case):
    before, expected = SIZED[case]
    after = rewritten(tmp_path, f"import functools\nimport jax\n{before}")[0].decode()
    assert after.endswith(textwrap.dedent(expected.replace(COUNTED, "        " + COUNTED)))


STATIC_DECORATOR = """\
import jax
from functools import partial
N = jax.device_count()
mesh = N
class Sampler:
    @partial(jax.pmap, static_broadcasted_argnums=(0,))
    def draw(self, key):
        \'\'\'Draws.\'\'\'
        {first}
        noise = jax.random.normal(key, (self.many, 3, self.width), dtype="f4")
        # Of one device.
        return noise + 1
"""


def test_a_decorated_function_with_static_arguments_has_its_body_in_an_inner_function(tmp_path):
    after = rewritten(tmp_path, STATIC_DECORATOR.format(first="key = key + 0"))[0].decode()
    assert after.endswith(
        textwrap.dedent(
            """\
            class Sampler:
                @partial(jax.jit, static_argnums=(0,))
                def draw(self, key):
                    \'\'\'Draws.\'\'\'

                    @jax.shard_map(
                        mesh=devices_mesh,
                        in_specs=jax.P("devices"),
                        out_specs=jax.P("devices"),
                        check_vma=False,
                    )
                    def per_device(key):
                        key = key[0]
                        key = key + 0
                        noise = jax.random.normal(
                            key, (self.many, 3, self.width), dtype="f4"
                        )
                        # Of one device.
                        return (noise + 1)[None]

                    return per_device(key)
            """
        )
    )


@pytest.mark.parametrize(
    "first",
    ["self = self.copy()", "import os", "super().draw(key)", "global total", "names = locals()"],
)
def test_a_body_that_means_something_else_in_an_inner_function_stays(tmp_path, first):
    after = rewritten(tmp_path, STATIC_DECORATOR.format(first=first))[0].decode()
    assert "@lambda function: lambda self, key: jax.shard_map(" in after


def test_calls_fill_their_lines_where_those_of_the_file_do(tmp_path):
    own = "".join(f"def f{i}(x):\n  return call(\n      x,\n      {i})\n" for i in range(4))
    own += "f1(1)\n"
    text = f"import jax\n{COUNTED}{own}g = jax.pmap(f1, axis_name='i', donate_argnums=(0,))\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert after.endswith(
        textwrap.dedent("""\
        mesh = jax.make_mesh(
            (jax.device_count(),), ('i',), axis_types=(jax.sharding.AxisType.Auto,))
        g = jax.jit(jax.shard_map(
            lambda *args: jax.tree.map(
                lambda x: x[None], f1(*jax.tree.map(lambda x: x[0], args))),
            mesh=mesh, in_specs=jax.P('i'), out_specs=jax.P('i'), check_vma=False),
            donate_argnums=(0,))
        """)
    )


@pytest.mark.parametrize(("filled", "is_filled"), [(3, True), (2, False), (1, False)])
def test_lines_are_filled_as_most_calls_of_the_file_fill_them(tmp_path, filled, is_filled):
    ends = [")"] * filled + [",\n  )"] * (4 - filled)
    own = "".join(
        f"def f{i}(x):\n  return call(\n      x,\n      {i}{e}\n" for i, e in enumerate(ends)
    )
    text = f"import jax\n{COUNTED}{own}g = jax.pmap(f1, axis_name='i', donate_argnums=(0,))\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert ("g = jax.jit(jax.shard_map(\n" in after) == is_filled
    assert ("g = jax.jit(\n    jax.shard_map(\n" in after) != is_filled


STACKED = {
    "arrays": (
        "def fork(rng):\n    a, b = jax.random.split(rng)\n    return a, b\n",
        "def fork(rng):\n    rng = rng[0]\n    a, b = jax.random.split(rng)\n"
        "    return a[None], b[None]\n",
    ),
    "expressions": (
        "def fork(x):\n    return x + 1, jnp.sin(x)\n",
        "def fork(x):\n    x = x[0]\n    return (x + 1)[None], jnp.sin(x)[None]\n",
    ),
    "a tree": (
        "def fork(tree):\n    return tree, 1\n",
        "def fork(tree):\n    tree = jax.tree.map(lambda x: x[0], tree)\n"
        "    return jax.tree.map(lambda x: jnp.expand_dims(x, 0), (tree, 1))\n",
    ),
}


@pytest.mark.parametrize("case", STACKED)
def test_a_function_of_stacked_arguments_that_only_its_map_uses_is_edited(tmp_path, case):
    before, expected = STACKED[case]
    text = f"import jax\nimport jax.numpy as jnp\n{COUNTED}{before}g = jax.pmap(fork, 'i')\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert COUNTED + expected in after
    assert "jax.shard_map(\n        fork,\n" in after


FIELDS = {
    "a field beside others": ("stats", "stats.mean + x.mean() + stats.count"),
    "a field that is not called": ("stats", "stats.mean + x.mean()"),
    "a field of a class that is noted": ("stats: Stats", "stats.T + x.mean()"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_with_the_names_of_an_arrays_methods_make_no_array(tmp_path, case):
    parameter, result = FIELDS[case]
    text = f"""\
import jax
{COUNTED}
class Stats(NamedTuple):
    mean: jax.Array

def update({parameter}, x):
    return {result}

g = jax.pmap(update, 'i')
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert "    stats = jax.tree.map(lambda x: x[0], stats)\n    x = x[0]\n" in after


def test_a_function_with_the_name_of_one_of_jax_is_edited(tmp_path):
    text = (
        f"import jax\n{COUNTED}def split(rng):\n    return jax.random.split(rng)\n"
        "g = jax.pmap(split, 'i')\n"
    )
    after = rewritten(tmp_path, text)[0].decode()
    assert "    rng = rng[0]\n    return jax.random.split(rng)[None]\n" in after


def test_names_that_do_not_fit_a_line_lose_their_axis_on_several(tmp_path):
    names = ", ".join(f"{which}_parameters" for which in ("first", "second", "third", "fourth"))
    text = f"""\
import jax
{COUNTED}
def update({names}):
    return call({names})
g = jax.pmap(update, 'i')
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert "    first_parameters, second_parameters, third_parameters = jax.tree.map(\n" in after
    assert "    fourth_parameters = jax.tree.map(lambda x: x[0], fourth_parameters)\n" in after


NUMBERS = {
    "a variable of the function around": (
        "def make(rate):\n    def f(x):\n        return x.sum(), {'rate': rate}\n"
        "    return jax.pmap(f, 'i')\n"
    ),
    "a local variable": (
        "@jax.pmap\ndef f(x):\n    count = x.size\n    found = {'sum': x.sum()}\n"
        "    found['count'] = count\n    return found\n"
    ),
    "a function of the program": (
        "def both(x):\n    return x.sum(), x.shape[0]\n@jax.pmap\ndef f(x):\n    return both(x)\n"
    ),
    "an auxiliary result": (
        "def loss(w, x):\n    return x.sum(), {'n': x.shape[0]}\n@jax.pmap\ndef f(w, x):\n"
        "    (l, aux), g = jax.value_and_grad(loss, has_aux=True)(w, x)\n    return g, aux\n"
    ),
    "a constant of the module": (
        "WEIGHT = 0.5\n@jax.pmap\ndef f(x):\n    return x.sum(), WEIGHT\n"
    ),
    "a field": (
        "class S(NamedTuple):\n    w: jax.Array\n    step: int\n@jax.pmap\ndef f(x):\n"
        "    return S(x, 0)\n"
    ),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_result_that_may_be_a_number_gets_its_axis_by_a_function(tmp_path, case):
    head = f"import jax\nfrom typing import NamedTuple\n{COUNTED}"
    after = rewritten(tmp_path, head + NUMBERS[case])[0].decode()
    assert "jax.numpy.expand_dims(x, 0)" in after
    assert "x[None]" not in after


def test_arrays_that_are_computed_from_themselves_get_their_axis_by_an_index(tmp_path):
    text = f"""\
import jax
{COUNTED}
def f(x):
    for _ in range(3):
        x = x * 2
    total = x.sum()
    total = total + 1
    return {{"x": x, "total": total}}

g = jax.pmap(f, 'i')
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert "x[None]" in after
    assert "expand_dims" not in after


def test_a_state_that_is_packed_and_unpacked_again_and_again_is_read_once(tmp_path):
    names = ", ".join("abcdef")
    again = f"        {names} = state\n        state = ({names})\n" * 4
    text = f"""\
import jax
{COUNTED}
@jax.pmap
def f({names}):
    state = ({names})
    for _ in range(3):
{again}
    return {{"state": state, "a": a}}
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert 'lambda x: x[None], {"state": state, "a": a}' in after


def test_a_function_that_a_variable_gives_to_others_too_is_wrapped(tmp_path):
    text = f"""\
import functools
import jax
{COUNTED}
def chain(key, count):
    return jax.random.split(key, count)

def run(keys, is_mapped):
    one = functools.partial(chain, count=2)
    if is_mapped:
        return jax.pmap(one)(keys)
    return jax.vmap(one)(keys)
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert "def chain(key, count):\n    return jax.random.split(key, count)\n" in after


def test_a_function_that_is_also_called_is_wrapped(tmp_path):
    text = f"import jax\n{COUNTED}def f(x):\n    return x + 1\nprint(f(1))\ng = jax.pmap(f, 'i')\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "def f(x):\n    return x + 1\n" in after


def test_a_backend_beside_devices_is_not_read(tmp_path):
    text = (
        "import jax\ndef evaluate(on_cpu, devices, x):\n"
        "    g = jax.pmap(lambda x: x + 1, 'i', devices=devices, backend='cpu' if on_cpu else None)\n"
        "    return g(x)\n"
    )
    after = rewritten(tmp_path, text)[0].decode()
    assert "jax.sharding.Mesh(" in after
    assert "backend" not in after


def test_a_lambda_in_a_partial_is_called_in_parentheses(tmp_path):
    text = (
        f"import functools\nimport jax\n{COUNTED}"
        "f = jax.pmap(functools.partial(lambda scale, x: x * scale, 2.0), axis_name='i')\n"
    )
    after = rewritten(tmp_path, text)[0].decode()
    assert "(lambda scale, x: x * scale)(2.0, " in " ".join(after.split())


def test_a_default_of_a_lambda_is_not_broken_in_two(tmp_path):
    text = f"""\
import functools
import jax
{COUNTED}
def f(x, *, first, second, names):
    return x

def main(rates, x):
    scale = 1
    g = jax.pmap(functools.partial(
        f, first=scale, second=scale + 1, names={{name: rate for _, name, (rate, _) in rates}}), 'i')
    y = g(x)
    scale = 2
    return y, scale, f(x, first=0, second=0, names={{}})
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert "function=functools.partial(" in after
    assert "names={name: rate for _, name, (rate, _) in rates})" in after


WRITTEN = {
    "a part called at once": COUNTED + "y = jax.pmap(abs)(ROWS[:3])\n",
    "another size": COUNTED + "f = jax.pmap(abs, axis_size=4)\n",
    "devices that may be None": COUNTED
    + "def f(devices=None):\n    g = jax.pmap(abs, devices=devices)\n",
    "keyword arguments": COUNTED + "f = jax.pmap(pow)\ny = f(ROWS, y=ROWS)\n",
    "made in a loop": COUNTED + "def f(x): return x\nfor i in range(3):\n    g = jax.pmap(f)\n",
    "made in each of two calls": (
        COUNTED + "def f(x): return x\ndef main():\n    g = jax.pmap(f)\nmain()\nmain()\n"
    ),
    "processes that are started after imports": (
        COUNTED + "f = jax.pmap(abs)\ndef main():\n    jax.distributed.initialize()\n"
    ),
}
NOT = {
    "static arguments of who knows what": COUNTED
    + "f = jax.pmap(pow, static_broadcasted_argnums=1)\n",
    "axes that are not written": COUNTED
    + "axes = tuple(map(int, '01'))\nf = jax.pmap(pow, in_axes=axes)\n",
    "axes from the end": COUNTED + "f = jax.pmap(abs, out_axes=-1)\n",
    "a name that is not known": COUNTED + "def f(name):\n    g = jax.pmap(abs, name)\n",
    "options of its own for what is made again": COUNTED
    + "def g(x): return x\ndef f(x, d): return jax.pmap(g, devices=d)(x)\nf(ROWS, D)\nf(ROWS, D)\n",
}


@pytest.mark.parametrize("case", [*WRITTEN, *NOT])
def test_what_is_written_out_and_what_looks_at_its_options_in_each_call(tmp_path, case):
    after, outcomes = rewritten(tmp_path, HEAD + {**WRITTEN, **NOT}[case])
    assert [each.reason for each in outcomes] == [""]
    assert (b"map_over_devices(" in after) == (case in NOT)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_program_that_counts_its_devices_has_its_maps_written_out(tmp_path, name):
    after, outcomes = rewritten(tmp_path, HEAD + COUNTED + PROGRAMS[name])
    assert [each.reason for each in outcomes] == [""] * len(outcomes)
    assert b"jax.jit" in after
    assert b"\ndef on_each_device" not in after
    assert rewritten(tmp_path, after) == (after, ())


def test_sizes_inside_of_a_map_are_not_its_number_of_shards(tmp_path):
    text = """
from typing import Any, NamedTuple
import jax, jax.numpy as jnp

class Out(NamedTuple):
    state: Any

@jax.pmap
def learn(state):
    rows = jnp.reshape(state * 2, (3, 2))
    return Out(state=rows)

state = jnp.zeros((jax.device_count(), 3, 2))
for _ in range(3):
    out = learn(state)
    state = out.state
"""
    after, outcomes = rewritten(tmp_path, text.encode())
    assert [each.reason for each in outcomes] == [""]
    assert b"jax.make_mesh((jax.device_count(),)" in after.replace(b"\n    ", b"")
    assert b"jax.tree.leaves" not in after


def test_another_file_may_count_the_devices(tmp_path):
    (tmp_path / "data.py").write_text("import jax\ndef shard(x, n=jax.local_device_count()): ...\n")
    (tmp_path / "train.py").write_text("import jax\nf = jax.pmap(abs)\n")
    (file,) = migrate([str(tmp_path)]).files
    assert b"mesh = jax.make_mesh((jax.device_count(),)" in file.after.replace(b"\n    ", b"")


def test_what_an_earlier_run_wrote_does_not_count_the_devices(tmp_path):
    first, _ = rewritten(tmp_path, "import jax\nf = use(jax.pmap)\n")
    assert b"jax.devices(" in first
    second, _ = rewritten(tmp_path, first + b"g = jax.pmap(abs)\n")
    assert b"g = jax.jit(\n    lambda *args: jax.shard_map(" in second


def test_a_mesh_does_not_start_the_backend_where_a_program_chooses_devices_later(tmp_path):
    program = COUNTED.replace("N = ", "def n(): return ") + "f = jax.pmap(abs, axis_name='i')\n"
    later = "def main():\n    jax.config.update('jax_platforms', 'cpu')\n"
    after = rewritten(tmp_path, f"import jax\n{program}{later}")[0].decode()
    assert "f = jax.jit(\n    lambda *args: jax.shard_map(" in after
    assert "\nmesh = " not in after


def test_an_axis_name_that_a_subclass_changes_is_read_where_the_mesh_is_made(tmp_path):
    text = (
        "class A:\n    axis = 'i'\n    def __init__(self):\n"
        "        self.f = jax.pmap(abs, axis_name=self.axis)\nclass B(A):\n    axis = 'j'\n"
    )
    after = rewritten(tmp_path, f"import jax\n{COUNTED}{text}")[0].decode()
    assert "jax.make_mesh((jax.device_count(),),(self.axis,)," in re.sub(r"\n +", "", after)
    text = text.replace("axis = 'j'", "axis = 'i'")
    assert b"mesh=mesh" in rewritten(tmp_path, f"import jax\n{COUNTED}{text}")[0]


KEYWORD = """\
import functools
import jax
import jax.numpy as jnp


def train_step(state, batch, config, scale=1.0, rng=None):
    return state + config * scale * jax.random.normal(rng) + batch.sum(), batch


def main(state, batches, config):
    rngs = jax.random.split(jax.random.key(0), jax.local_device_count())
    step = jax.pmap(functools.partial(train_step, config=config), axis_name="i"{})
    for batch in batches:
        state, batch = step(state, batch, rng=rngs)
"""


@pytest.mark.parametrize("axes", ["", ", in_axes=(None, 0), out_axes=(None, 0)"])
def test_a_keyword_of_every_call_is_an_argument_and_a_partial_is_called_with_its_keywords(
    tmp_path, axes
):
    after = rewritten(tmp_path, KEYWORD.format(axes))[0].decode()
    assert "        jax.shard_map(" in after
    # As arguments of the function in the file, whose body takes the axis off, or in the lambda.
    assert "rng = rng[0]\n" in after or "rng=rng[0]" in after
    assert re.search(r"config=config,\s+rng=rng", after)
    # The call gives it by position, since jax.shard_map takes no keywords.
    assert after.endswith(" = step(state, batch, rngs)\n")
    assert after.count("def ") == 2


@pytest.mark.parametrize(
    ("option", "called"),
    [
        ("", "step(state, batch, (rngs))"),
        (", donate_argnums=0", "step(state, batch, (rngs))"),
        # pmap does not donate a keyword, and jax.jit would.
        (", donate_argnums=(0, 2)", "step(state, batch, rng=(rngs))"),
        (", static_broadcasted_argnums=2", "step(state, batch, rng=(rngs))"),
    ],
)
def test_keywords_become_positions_unless_those_are_donated_or_static(tmp_path, option, called):
    text = KEYWORD.format(option).replace("rng=rngs", "rng = (rngs)")
    after = rewritten(tmp_path, text)[0].decode()
    assert called.replace("rng=", "rng = ") in after


def test_keywords_in_another_order_stay(tmp_path):
    text = KEYWORD.format("").replace("state, batch, rng=rngs", "state, rng=rngs, batch=batch")
    after = rewritten(tmp_path, text)[0].decode()
    assert "step(state, rng=rngs, batch=batch)" in after
    assert "lambda state, batch, rng: jax.shard_map(" in after


BOUND = """\
import functools
import jax


def step(apply, state, batch, scale=1.0):
    return apply(state, batch) * scale


def main(model, config, state, batch):
    n = jax.local_device_count()
    print(step(model.apply, state, batch))
    eval_step = jax.pmap(functools.partial(step, model.apply, scale=config.scale), axis_name="i")
    return eval_step(state, batch)
"""


def test_a_partial_is_called_with_the_arguments_that_it_has(tmp_path):
    after = rewritten(tmp_path, BOUND)[0].decode()
    assert "= step(model.apply, state, batch, scale=config.scale)\n" in after
    assert "functools" not in after
    starred = BOUND.replace("model.apply, scale", "*model.parts, scale")
    assert b"functools.partial(step, *model.parts" in rewritten(tmp_path, starred)[0]


def test_a_keyword_that_some_calls_give_is_no_argument(tmp_path):
    text = KEYWORD.format("") + "    state, _ = step(state, batch)\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "lambda *args, **kwargs:" in after


def test_a_map_of_replicated_values_without_an_axis_name_is_jax_jit(tmp_path):
    options = "in_axes=None, out_axes=None, axis_size=N"
    text = f"import jax\n{COUNTED}state = jax.pmap(opt.init, {options})(params)\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert after.endswith("state = jax.jit(opt.init)(params)\n")
    assert "make_mesh" not in after
    named = text.replace("opt.init,", "opt.init, 'i',")
    assert b"jax.shard_map(" in rewritten(tmp_path, named)[0]


def test_a_file_that_only_defines_makes_no_mesh_at_import(tmp_path):
    maps = (
        "def one(f):\n    return jax.pmap(f, 'i')\n\n\ndef two(f):\n    return jax.pmap(f, 'i')\n"
    )
    text = f"import jax\n\nN = 8\n\n\n{maps}"
    after = rewritten(tmp_path, text)[0].decode()
    assert "\nmesh = " not in after
    run = rewritten(tmp_path, f"{text}\n\nprint(one(abs))\n{COUNTED}")[0].decode()
    assert "\nmesh = " in run


def test_a_file_that_one_without_jax_imports_makes_no_mesh_at_import(tmp_path):
    (tmp_path / "steps.py").write_text(
        "import jax\ndef n(): return jax.local_device_count()\nf = jax.pmap(abs, 'i')\n"
    )
    assert b"\nmesh = " in migrate([str(tmp_path)]).files[0].after
    (tmp_path / "main.py").write_text("import steps\nprint(steps.f)\n")
    assert b"\nmesh = " not in migrate([str(tmp_path)]).files[0].after


def test_a_mesh_for_the_main_block_alone_is_made_in_it(tmp_path):
    body = "    n = jax.local_device_count()\n    f = jax.pmap(abs, 'i')\n    f(np.ones((n, 2)))\n"
    text = f"import jax\nimport numpy as np\n\nif __name__ == '__main__':\n{body}"
    after = rewritten(tmp_path, text)[0].decode()
    assert "\n    mesh = jax.make_mesh(" in after
    assert "\nmesh = " not in after


def test_a_call_around_a_map_gets_an_argument_a_line(tmp_path):
    text = """\
    import jax

    n = jax.local_device_count()
    step = timed(jax.pmap(update, "i"), warmup=2)
    """
    after, _ = rewritten(tmp_path, text)
    assert (
        after.decode().split("step = ")[1]
        == """\
timed(
    jax.jit(
        jax.shard_map(
            lambda *args: jax.tree.map(
                lambda x: jax.numpy.expand_dims(x, 0),
                update(*jax.tree.map(lambda x: x[0], args)),
            ),
            mesh=mesh,
            in_specs=jax.P("i"),
            out_specs=jax.P("i"),
            check_vma=False,
        ),
    ),
    warmup=2,
)
"""
    )


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("dict(params=state.params)", "variables"),
        ("{'params': state.params, 'batch_stats': state.batch_stats}", "variables"),
        ("make()", "arg0"),
    ],
)
def test_arguments_of_a_function_that_is_not_known_have_the_names_of_a_call(tmp_path, first, name):
    text = f"""\
    import jax

    n = jax.local_device_count()
    infer = jax.pmap(model.apply, in_axes=(None, 0, 0))
    out = infer({first}, batch["image"], state.keys)
    """
    after = rewritten(tmp_path, text)[0].decode()
    assert re.search(rf"(lambda |def sharded_apply\(){name}, image, keys\b", after)


def test_arguments_stand_as_deep_as_in_other_calls_of_the_file(tmp_path):
    text = """\
    import jax

    def make(apply):
      n = jax.local_device_count()
      return wrapped(
          jax.pmap(apply, "i"))
    """
    after, _ = rewritten(tmp_path, text)
    assert b"\n      jax.jit(jax.shard_map(\n          lambda *args:" in after


@pytest.mark.parametrize("shards", ["np.split(x, len(chosen))", "[x] * len(chosen)"])
def test_shards_that_are_arrays_are_stacked_without_a_tree_map(tmp_path, shards):
    text = f"""\
    import jax
    import numpy as np


    def put(tree, chosen):
        return jax.tree.map(lambda x: jax.device_put_sharded({shards}, chosen), tree)


    step = jax.pmap(abs, "i")
    """
    after, _ = rewritten(tmp_path, text)
    assert f"jax.numpy.stack({shards}),\n" in after.decode()
    assert max(map(len, after.decode().splitlines())) <= 100


def test_a_map_that_returns_its_argument_leaves_the_axis_on(tmp_path):
    text = """\
    import jax

    n = jax.local_device_count()
    place = jax.pmap(lambda x: x)
    """
    after, _ = rewritten(tmp_path, text)
    assert "jax.shard_map(\n        lambda x: x,\n" in after.decode()


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_what_is_only_reduced_over_the_devices_keeps_its_axis(tmp_path, name):
    text = (
        f"import jax\nfrom jax import lax\nAXIS = 'i'\nf = jax.pmap(BODY, axis_name='i')\n{COUNTED}"
    )
    body = f"lambda x: lax.{name}(x, AXIS)"
    after = rewritten(tmp_path, text.replace("BODY", body))[0].decode()
    assert f"        {body},\n" in after
    of_two = f"lambda x, y: lax.{name}(x, y)"
    after = rewritten(tmp_path, text.replace("BODY", of_two))[0].decode()
    assert of_two not in after


def test_a_mapped_expression_of_several_lines_is_indented_as_its_call(tmp_path):
    lines = ["f = jax.pmap(", "    jax.vmap(  # walkers", "        g,", "    ),", "    'i',", ")\n"]
    after = rewritten(tmp_path, f"import jax\n{COUNTED}" + "\n".join(lines))[0].decode()
    expected = ["    result = jax.vmap(  # walkers", "        g,", "    )(\n"]
    assert "\n".join(expected) in after


def test_specs_that_alternate_are_written_one_by_one(tmp_path):
    names = [f"argument_{i}" for i in range(8)]
    body = f"def f({', '.join(names)}):\n    return argument_0\n"
    text = f"import jax\n{COUNTED}{body}g = jax.pmap(f, 'batch', in_axes=AXES)\n"
    several = rewritten(tmp_path, text.replace("AXES", "(0,) * 4 + (None,) * 4"))[0].decode()
    assert "in_specs=(jax.P('batch'),) * 4 + (jax.P(),) * 4,\n" in several
    mixed = rewritten(tmp_path, text.replace("AXES", "(0, None, 0, None, 0, 0, 0, 0)"))[0].decode()
    assert "        in_specs=(\n            jax.P('batch'),\n            jax.P(),\n" in mixed


IN_TWO_SPACES = """\
    import jax

    def make(apply):
      n = jax.local_device_count()
      return timed(jax.pmap(apply, "i"), 2)
    """


def test_a_file_of_two_spaces_without_long_calls_fills_its_lines(tmp_path):
    after, _ = rewritten(tmp_path, IN_TWO_SPACES)
    lines = after.decode().splitlines()
    assert "  return timed(jax.jit(jax.shard_map(" in lines
    assert lines[-1].endswith("check_vma=False)), 2)")


def test_a_call_around_a_map_in_a_file_of_two_spaces(tmp_path):
    long_call = """
      log(
          n,
      )
      return"""
    after, _ = rewritten(tmp_path, IN_TWO_SPACES.replace("\n      return", long_call))
    lines = after.decode().splitlines()
    start = lines.index("  return timed(")
    assert lines[start + 1 : start + 3] == ["      jax.jit(", "          jax.shard_map("]
    assert lines[-3:] == ["      ),", "      2,", "  )"]


SOME_DEVICES = """\
import jax

devices = jax.devices("cpu")
init = jax.pmap(abs, axis_name="p", devices=devices)
step = jax.pmap(lambda x: jax.lax.psum(x, "p"), axis_name="p", devices=devices)
play = jax.pmap(abs, axis_name="p", devices=devices[:1])
"""


def test_maps_over_the_same_devices_share_a_mesh_and_a_slice_has_its_own(tmp_path):
    after = rewritten(tmp_path, SOME_DEVICES)[0].decode()
    assert after.count("mesh=mesh") == 2
    assert after.count("jax.sharding.Mesh(") == 2
    assert "def " not in after


def test_a_comment_for_a_tool_stays_on_its_line(tmp_path):
    text = "import jax\n\ndef f(d):\n    return jax.pmap(  # type: ignore\n        abs,\n        # all\n        devices=d,\n    )\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "return jax.jit(  # type: ignore\n        # all\n        jax.shard_map(\n" in after


HELD = """\
import jax


def main(f, xs, y):
    n = jax.local_device_count()
    in_axes = (0, None)
    g = jax.pmap(f, in_axes=in_axes, out_axes=0)
    return g(xs, y)
"""


def test_axes_that_a_name_holds_are_written_out(tmp_path):
    after = rewritten(tmp_path, HELD)[0].decode()
    assert "in_specs=(jax.P('devices'), jax.P())" in after.replace('"', "'")
    assert after.count("def ") == 1
    again = HELD.replace("    return", "    in_axes = 0\n    return")
    assert rewritten(tmp_path, again)[0].decode().count("def ") > 1


def test_arguments_behind_a_new_function_are_indented_anew(tmp_path):
    text = """\
    import jax

    n = jax.local_device_count()
    out = jax.pmap(lambda x, y: jax.lax.psum(x, "i") + y, axis_name="i")(make(n, 3),
                                                                         make(n,
                                                                              4))
    """
    after, _ = rewritten(tmp_path, text)
    assert after.decode().endswith("\n)(make(n, 3), make(n, 4))\n")


def test_arguments_with_comments_behind_a_new_function_stay_as_they_are(tmp_path):
    text = """\
    import jax

    n = jax.local_device_count()
    out = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(make(n, 3,  # batch
                                                                       4))
    """
    after, _ = rewritten(tmp_path, text)
    assert "make(n, 3,  # batch\n" in after.decode()


def test_a_call_at_once_without_mapped_arguments_is_on_the_mesh_of_the_others(tmp_path):
    text = """\
    import flax
    import jax
    import jax.numpy as jnp


    def main(net, look, batches):
        key = flax.jax_utils.replicate(jax.random.PRNGKey(0))
        params = jax.pmap(net.init)(key)
        look(params)
        step = jax.pmap(lambda p, x: jax.lax.pmean(p * x, "i"), axis_name="i")
        for batch in batches:
            params = step(params, batch)
        return params
    """
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    (file,) = migrate([str(path)]).changed
    assert file.after.count(b"jax.make_mesh(") == 1


def test_static_arguments_join_those_that_a_partial_has(tmp_path):
    text = """\
import functools
import jax


def predict(inputs, params, key, eos, length, config, temperature):
    return params * inputs + jax.random.uniform(key) * temperature


def main(config, inputs, params, keys):
    n = jax.local_device_count()
    p_predict = jax.pmap(
        functools.partial(
            predict,
            config=config,
            temperature=config.sampling_temperature,
        ),
        axis_name="batch",
        static_broadcasted_argnums=(3, 4),
    )
    return p_predict(inputs, params, keys, 1, 8)
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert after.count("functools.partial(") == 1
    assert (
        """
            functools.partial(
                predict,
                config=config,
                temperature=config.sampling_temperature,
                eos=eos,
                length=length,
            ),
            mesh=mesh,
"""
        in after
    )


def test_lines_fit_the_width_of_the_file_as_it_was(tmp_path):
    comment = "  # pylint: disable=logging-fstring-interpolation,protected-access,line-too-long"
    text = f"""\
import jax
from flax import jax_utils


def step(params, opt_state, batch, rng):
  grads = jax.lax.pmean(batch.mean(), 'batch')
  return params - grads, opt_state + grads, grads, jax.random.split(rng)[0]


def main(params, opt_state, batches):
  n = jax.local_device_count(){comment}
  p_step = jax.pmap(step, axis_name='batch', donate_argnums=(0, 1))
  p_step_again = jax.pmap(step, axis_name='batch', donate_argnums=(0,))
  params_repl = jax_utils.replicate(params)
  opt_state_repl = jax_utils.replicate(opt_state)
  rng_repl = jax_utils.replicate(jax.random.PRNGKey(0))
  for batch in batches:
    params_repl, opt_state_repl, grads, rng_repl = p_step(
        params_repl, opt_state_repl, batch, rng_repl)
    params_repl, opt_state_repl, grads, rng_repl = p_step_again(
        params_repl, opt_state_repl, batch, rng_repl)
  return params_repl
"""
    (tmp_path / "train.py").write_text(text)
    (file,) = migrate([str(tmp_path)]).files
    after = file.after.decode()
    assert "in_specs=(jax.P(), jax.P(), jax.P('batch'), jax.P())" in after
    long = [line for line in after.splitlines() if len(line) > 80]
    assert long == [f"  n = jax.local_device_count(){comment}"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "axis_name='batch',\n      # The state is not needed again.\n      donate_argnums=(0,)",
            "check_vma=False),\n      # The state is not needed again.\n      donate_argnums=(0,))\n",
        ),
        (
            "axis_name='batch',\n      donate_argnums=(0,),  # The state is not needed again.\n  ",
            "      ),\n      # The state is not needed again.\n      donate_argnums=(0,),\n  )\n",
        ),
        (
            "# Over all devices.\n      axis_name='batch', donate_argnums=(0,)",
            "jax.jit(jax.shard_map(\n      # Over all devices.\n      step, mesh=mesh,",
        ),
    ],
)
def test_a_comment_on_an_option_that_stays_is_above_it(tmp_path, options, expected):
    text = (
        "import jax\nfrom flax import jax_utils\n\nn = jax.local_device_count()\n\n\n"
        "def step(state, batch):\n  return state - jax.lax.pmean(batch.mean(), 'batch')\n\n\n"
        "def main(state, batches):\n  state = jax_utils.replicate(state)\n"
        f"  p_step = jax.pmap(\n      step, {options})\n"
        "  for batch in batches:\n    state = p_step(state, batch)\n  return state[0]\n"
    )
    (tmp_path / "train.py").write_text(text)
    after = migrate([str(tmp_path)]).files[0].after.decode()
    assert expected in after


@pytest.mark.parametrize(
    "used",
    [
        "jax.tree.map(lambda params: params * 2, params)",
        "[params.sum() for params in params]",
        "list(map(lambda params: params.sum(), params))",
    ],
)
def test_an_inner_function_that_uses_a_name_for_an_array_says_nothing_of_the_argument(
    tmp_path, used
):
    text = f"import jax\n\nN = jax.device_count()\n\n\n@jax.pmap\ndef f(params, x):\n    return {used}\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "params, x = jax.tree.map(lambda x: x[0], (params, x))" in after


def test_an_infinity_among_results_is_a_number_of_pythons(tmp_path):
    text = "import jax\nimport jax.numpy as jnp\n\nN = jax.device_count()\n\n\n@jax.pmap\ndef f(x):\n    return x, -jnp.inf\n"
    after = rewritten(tmp_path, text)[0].decode()
    assert "jnp.expand_dims(x, 0)" in after


WRAPPED_MAP = """\
import functools
import jax
import jax.numpy as jnp

n = jax.local_device_count()
pmap = functools.partial(jax.pmap, axis_name="i")
maps = [pmap]


def mean_of_all_the_observables(observables):
    return jax.lax.pmean(observables, "i"), observables


def main(observables_of_first, observables_of_second):
    means, _ = {}
    print(means[0])


main(jnp.ones((n, 2)), jnp.ones((n, 2)))
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            "pmap(mean_of_all_the_observables)(observables_of_first)",
            "pmap(mean_of_all_the_observables, out_axes=(None, 0))(\n"
            "        observables_of_first\n    )",
        ),
        (
            "pmap(lambda x: mean_of_all_the_observables(x + observables_of_second))(\n"
            "        observables_of_first\n    )",
            "pmap(\n        lambda x: mean_of_all_the_observables(x + observables_of_second), "
            "out_axes=(None, 0)\n    )(\n        observables_of_first\n    )",
        ),
        ("pmap(mean_of_all_the_observables)(x)", None),
    ],
)
def test_axes_that_a_kept_call_is_given_do_not_make_its_line_too_long(tmp_path, call, expected):
    (tmp_path / "train.py").write_text(WRAPPED_MAP.format(call))
    after = migrate([str(tmp_path)]).files[0].after.decode()
    assert (expected or "pmap(mean_of_all_the_observables, out_axes=(None, 0))(x)") in after


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (
            "return apply({'params': state.params, 'batch_stats': state.batch_stats},\n"
            "                 images, train=False)",
            "return jax.tree.map(\n"
            "        lambda x: x[None],\n"
            "        apply(\n"
            "            {'params': state.params, 'batch_stats': state.batch_stats},\n"
            "            images,\n"
            "            train=False,\n"
            "        ),\n"
            "    )\n",
        ),
        (
            "return apply(\n        images,\n        train=False,\n    )",
            "return jax.tree.map(lambda x: x[None], apply(\n"
            "        images,\n        train=False,\n    ))\n",
        ),
        (
            "return apply({'params': state.params, 'batch_stats': state.batch_stats},  # both\n"
            "                 images, train=False)",
            "return jax.tree.map(lambda x: x[None], apply({'params': state.params, "
            "'batch_stats': state.batch_stats},  # both\n"
            "                 images, train=False))\n",
        ),
    ],
)
def test_a_result_of_several_lines_is_laid_out_again_if_it_gets_too_long(
    tmp_path, returned, expected
):
    text = f"""\
import jax
from model import apply, state

n = jax.local_device_count()


@jax.pmap
def logits(images):
    {returned}
"""
    after = rewritten(tmp_path, text)[0].decode()
    assert after.endswith(f"    {expected}")


def test_the_values_of_a_tuple_are_replicated_by_one_call(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        f"import jax\nfrom flax import jax_utils\n# {'x' * 90}\nN = jax.device_count()\n"
        "def loss(a, b):\n    return jax.lax.pmean((a - b).sum(), 'i')\n"
        "def test(batch, predictions):\n    a, b = (\n"
        "        jax_utils.replicate(batch), jax_utils.replicate(predictions))\n"
        "    mapped = jax.pmap(loss, axis_name='i')\n    return mapped(a, b)[0]\n"
    )
    (file,) = migrate([str(path)]).changed
    placed = "a, b = jax.device_put( (batch, predictions), jax.NamedSharding(mesh, jax.P()) )"
    assert placed in " ".join(file.after.decode().split())
    assert max(map(len, file.after.splitlines())) <= 100
