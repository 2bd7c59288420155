"""Maps that are written out where they stand, and those that are not."""

import textwrap

import numpy as np
import pytest
from migrated import migrate, rewritten
from pmap_programs import COUNTED, HEAD, PROGRAMS, WRITTEN_OUT

TEXTS = {
    "a call": (
        "step = jax.pmap(f, axis_name='b', donate_argnums=(0,))  # why\n",
        """\
        step = jax.jit(
            jax.shard_map(
                on_one_row(f),
                mesh=jax.sharding.Mesh(jax.devices(), ('b',)),
                in_specs=jax.P('b'),
                out_specs=jax.P('b'),
                check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
            ),
            donate_argnums=(0,),
        )  # why
        """,
    ),
    "axes": (
        "step = jax.pmap(f, 'b', in_axes=(None, 1, {'x': 0}), out_axes=(None, 0))\n",
        """\
        step = jax.jit(
            jax.shard_map(
                on_one_row_along(f, in_axes=(None, 1, {'x': 0}), out_axes=(None, 0)),
                mesh=jax.sharding.Mesh(jax.devices(), ('b',)),
                in_specs=(jax.P(), jax.P(None, 'b'), {'x': jax.P('b')}),
                out_specs=(jax.P(), jax.P('b')),
                check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
            ),
        )
        """,
    ),
    "a decorator": (
        "# above\n@jax.pmap  # beside\ndef g(x): return x\n",
        """\
        # above
        @jax.jit
        @jax.shard_map(
            mesh=jax.sharding.Mesh(jax.devices(), ("rows",)),
            in_specs=jax.P("rows"),
            out_specs=jax.P("rows"),
            check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
        )
        @on_one_row  # beside
        def g(x): return x
        """,
    ),
    "a decorator in a class": (
        "class A:\n    @staticmethod\n    @functools.partial(jax.pmap, axis_name='i', "
        "in_axes=(0, None), donate_argnums=0)\n    def g(x, y): return x\n",
        """\
        class A:
            @staticmethod
            @functools.partial(jax.jit, donate_argnums=0)
            @functools.partial(
                jax.shard_map,
                mesh=jax.sharding.Mesh(jax.devices(), ('i',)),
                in_specs=(jax.P('i'), jax.P()),
                out_specs=jax.P('i'),
                check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
            )
            @functools.partial(on_one_row_along, in_axes=(0, None))
            def g(x, y): return x
        """,
    ),
    "in a function, on some devices": (
        "def main(f):\n    return [abs, jax.pmap(abs, devices=jax.devices()[:2])]\nmain(1)\n",
        """\
        def main(f):
            return [abs, jax.jit(
                jax.shard_map(
                    on_one_row(abs),
                    mesh=jax.sharding.Mesh(jax.devices()[:2], ("rows",)),
                    in_specs=jax.P("rows"),
                    out_specs=jax.P("rows"),
                    check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
                ),
            )]
        main(1)
        """,
    ),
    "comments inside": (
        "step = jax.pmap(\n    lambda x: (  # here\n        x\n    ),  # the step\n"
        "    # the axis\n    axis_name='b',\n)  # why\n",
        """\
        step = jax.jit(
            # the step
            # the axis
            jax.shard_map(
                on_one_row(lambda x: (  # here
                    x
                )),
                mesh=jax.sharding.Mesh(jax.devices(), ('b',)),
                in_specs=jax.P('b'),
                out_specs=jax.P('b'),
                check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
            ),
        )  # why
        """,
    ),
    "comments inside a decorator": (
        "# above\n@functools.partial(\n    jax.pmap,  # mapped\n    axis_name='i',  # why\n)\n"
        "def g(x): return x\n",
        """\
        # above
        # mapped
        # why
        @jax.jit
        @functools.partial(
            jax.shard_map,
            mesh=jax.sharding.Mesh(jax.devices(), ('i',)),
            in_specs=jax.P('i'),
            out_specs=jax.P('i'),
            check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
        )
        @on_one_row
        def g(x): return x
        """,
    ),
    "what looks like a comment": (
        "step = jax.pmap(lambda x: named(x, 'a  # b'))\n",
        """\
        step = jax.jit(
            jax.shard_map(
                on_one_row(lambda x: named(x, 'a  # b')),
                mesh=jax.sharding.Mesh(jax.devices(), ("rows",)),
                in_specs=jax.P("rows"),
                out_specs=jax.P("rows"),
                check_vma=False,  # it reduces its gradients over the axis itself, as under pmap
            ),
        )
        """,
    ),
    "of several processes": (
        "print(jax.process_index())\ndef main():\n    g = jax.pmap(abs, 'i', donate_argnums=0)\n",
        """\
        print(jax.process_index())
        def main():
            g = map_own_rows(
                on_one_row(abs),
                mesh=jax.sharding.Mesh(jax.devices(), ('i',)),
                in_specs=jax.P('i'),
                out_specs=jax.P('i'),
                donate_argnums=0,
            )
        """,
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_of_a_map_that_is_written_out(tmp_path, case):
    before, expected = TEXTS[case]
    after = rewritten(tmp_path, f"import functools\nimport jax\n{COUNTED}{before}")[0].decode()
    assert after.endswith(COUNTED + textwrap.dedent(expected))


NOT = {
    "nothing counts devices": "def f(x): return x\ng = jax.pmap(f)\n",
    "some of the devices": COUNTED + "d = jax.local_devices()[:N]\nf = jax.pmap(abs)\n",
    "called at once": COUNTED + "y = jax.pmap(abs)(ROWS)\n",
    "static arguments": COUNTED + "f = jax.pmap(pow, static_broadcasted_argnums=1)\n",
    "axes that are not written": COUNTED + "axes = 0, 1\nf = jax.pmap(pow, in_axes=axes)\n",
    "axes from the end": COUNTED + "f = jax.pmap(abs, out_axes=-1)\n",
    "a name that is not known": COUNTED + "def f(name):\n    g = jax.pmap(abs, name)\n",
    "devices that may be None": COUNTED
    + "def f(devices=None):\n    g = jax.pmap(abs, devices=devices)\n",
    "keyword arguments": COUNTED + "f = jax.pmap(pow)\ny = f(ROWS, y=ROWS)\n",
    "unpacked keywords": COUNTED + "f = jax.pmap(pow)\ny = f(ROWS, **{'y': ROWS})\n",
    "another size": COUNTED + "f = jax.pmap(abs, axis_size=4)\n",
    "made in a loop": COUNTED + "def f(x): return x\nfor i in range(3):\n    g = jax.pmap(f)\n",
    "made in each of two calls": (
        COUNTED + "def f(x): return x\ndef main():\n    g = jax.pmap(f)\nmain()\nmain()\n"
    ),
    "devices chosen after imports": (
        COUNTED + "f = jax.pmap(abs)\ndef main():\n    jax.config.update('jax_platforms', 'cpu')\n"
    ),
    "processes that are told of each other after imports": (
        COUNTED + "f = jax.pmap(abs)\ndef main():\n    jax.distributed.initialize()\n"
    ),
}


@pytest.mark.parametrize("case", NOT)
def test_what_cannot_be_written_out_looks_at_its_arguments(tmp_path, case):
    after, outcomes = rewritten(tmp_path, HEAD + NOT[case])
    assert [each.reason for each in outcomes] == [""]
    assert b"on_one_row" not in after
    assert b"one_row_each(" in after


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_program_that_counts_its_devices_has_its_maps_written_out(tmp_path, name):
    after, outcomes = rewritten(tmp_path, HEAD + COUNTED + PROGRAMS[name])
    assert [each.reason for each in outcomes] == [""] * len(outcomes)
    assert b"on_one_row" in after
    assert rewritten(tmp_path, after) == (after, ())


def test_another_file_may_count_the_devices(tmp_path):
    (tmp_path / "data.py").write_text("import jax\ndef shard(x, n=jax.local_device_count()): ...\n")
    (tmp_path / "train.py").write_text("import jax\nf = jax.pmap(abs)\n")
    (file,) = migrate([str(tmp_path)]).files
    assert b"jax.shard_map(\n        on_one_row(abs)," in file.after


def test_what_an_earlier_run_wrote_does_not_count_the_devices(tmp_path):
    first, _ = rewritten(tmp_path, "import jax\nf = jax.pmap(abs)\n")
    second, _ = rewritten(tmp_path, first + b"g = jax.pmap(abs)\n")
    assert b"g = jax.jit(one_row_each(abs))\n" in second


def test_a_map_with_more_rows_than_devices_ends_with_an_error(tmp_path):
    program = "import jax\nimport numpy as np\nn = jax.device_count()\nf = jax.pmap(abs)\n"
    names = {}
    exec(compile(rewritten(tmp_path, program)[0], "after", "exec"), names)
    rows = np.ones((2 * names["n"], 3))
    with pytest.raises(ValueError, match="size"):
        names["f"](rows)
