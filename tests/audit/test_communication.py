"""Collectives are found in programs of every platform, with their axis, bytes and count."""

import random
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from pmapx._src.audit.hlo import parser
from pmapx._src.audit.hlo.collectives import axes_of, collectives

PROGRAMS = Path(__file__).parent / "programs"
BOTH = ("data", "model")

# kind, axes, devices that talk, bytes, times; see programs/train.py.
ON_CPU = {
    ("all-reduce", ("data",), 4, 24, 5),
    ("all-reduce", BOTH, 8, 4, 1),  # XLA took it out of the loop.
    ("all-reduce", ("model",), 2, 32, 1),  # In a branch of a conditional.
    ("all-gather", ("model",), 2, 48, 1),
    ("reduce-scatter", ("data",), 4, 32, 1),
    ("collective-permute", ("data",), 4, 32, 1),
    ("all-to-all", ("model",), 2, 32, 1),
}
EXPECTED = {
    "cpu-0.8.0": ON_CPU,
    "cpu-0.10.2": ON_CPU,
    "cpu-0.12.0.1": ON_CPU,
    "gpu-0.11.2": {
        ("all-reduce", ("data",), 4, 32768, 5),
        ("all-reduce", BOTH, 8, 20, 1),
        ("all-gather", ("model",), 2, 65536, 1),
        ("reduce-scatter", ("data",), 4, 32768, 1),
        ("collective-permute", ("data",), 4, 32768, 1),
        ("all-to-all", ("model",), 2, 32768, 1),
    },
    "tpu-0.10.2": {
        ("all-reduce", ("data",), 8, 32768, 5),
        ("all-reduce", BOTH, 16, 4, 1),
        ("all-reduce", ("data",), 8, 16384, 1),  # What became of the reduce-scatter there.
        ("all-gather", ("model",), 2, 65536, 1),
        ("collective-permute", ("data",), 8, 16384, 1),
        ("all-to-all", ("model",), 2, 16384, 1),
    },
}


def text_of(name):
    return (PROGRAMS / f"{name}.txt").read_text()


def mesh_of(name):
    return {"data": 8, "model": 2} if name.startswith("tpu") else {"data": 4, "model": 2}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_collective_of_a_saved_program_is_found(name):
    found = collectives(text_of(name), mesh_of(name))

    assert {(c.kind, c.axes, c.group_size, c.payload, c.times) for c in found} == EXPECTED[name]
    assert len(found) == len(EXPECTED[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_collectives_are_traced_to_a_line_of_the_users_code(name):
    found = collectives(text_of(name), mesh_of(name))

    places = {c.place for c in found} - {None}
    assert len(places) >= 4
    assert all(place.startswith("train.py:") for place in places)
    assert any(c.operation.endswith("ppermute") for c in found if c.operation)


@pytest.mark.parametrize("name", EXPECTED)
def test_truncated_or_garbled_hlo_does_not_raise(name):
    text = text_of(name)
    lines = text.splitlines()
    draw = random.Random(0)
    for _ in range(40):
        garbled = list(lines)
        for _ in range(10):
            line = draw.randrange(len(garbled))
            start = draw.randrange(len(garbled[line]) + 1)
            garbled[line] = garbled[line][:start] + draw.choice(["", "(", "}", '"', "= ", "%x"])
        collectives("\n".join(garbled), mesh_of(name))
    for end in range(0, len(text), len(text) // 40):
        collectives(text[:end], mesh_of(name))


def test_an_unknown_instruction_is_passed_over():
    text = """
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %odd = (f32[4]{0}, q17[3,?]) quantum-reduce(%x, {1, 2}), spin={up="}"}, calls=%nowhere
  ROOT %y = f32[4]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}"""
    (found,) = collectives(text, {"i": 8})

    assert (found.kind, found.axes, found.payload) == ("all-reduce", ("i",), 16)


def test_a_loop_of_unknown_length_is_reported_as_such():
    text = """
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  %v = f32[4]{0} get-tuple-element(%p), index=1
  %r = f32[4]{0} all-reduce(%v), replica_groups={{0,1}}, to_apply=%add
  ROOT %t = (s32[], f32[4]{0}) tuple(%p, %r)
}
%cond (p.1: (s32[], f32[4])) -> pred[] {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %go = pred[] custom-call(%p.1)
}
ENTRY %main (x: (s32[], f32[4])) -> (s32[], f32[4]) {
  %x = (s32[], f32[4]{0}) parameter(0)
  ROOT %w = (s32[], f32[4]{0}) while(%x), condition=%cond, body=%body
}"""
    (found,) = collectives(text, {"i": 2})

    assert found.times is None
    assert found.sent_in_a_call == found.sent == 16


def test_nested_loops_multiply():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))

    def body(x):
        def inner(x, _):
            return lax.psum(x * 0.5, "i"), None

        def outer(x, _):
            return lax.scan(inner, x, None, length=3)[0], None

        return lax.scan(outer, x, None, length=4)[0]

    spec = jax.sharding.PartitionSpec("i")
    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    text = f.lower(jnp.ones((jax.device_count(), 5))).compile().as_text()

    found = collectives(text, dict(mesh.shape))

    assert [(c.kind, c.payload, c.times) for c in found] == (
        [("all-reduce", 20, 12)] if jax.device_count() > 1 else []
    )


@pytest.mark.needs_devices(2)
def test_the_collective_of_a_pmapped_step_names_this_file():
    step = pmapx.pmap(lambda w, x: w - lax.pmean(w * x, "batch"), axis_name="batch")
    n = jax.device_count()
    text = step.lower(np.ones((n, 6), np.float32), np.ones(n, np.float32)).compile().as_text()

    (found,) = collectives(text, {"batch": n})

    assert (found.kind, found.axes, found.payload, found.times) == ("all-reduce", ("batch",), 24, 1)
    assert found.sent == 2 * 24 * (n - 1) // n
    assert found.place.startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1,2,3}}", ((0, 1, 2, 3),)),
        ("{{0},{1},{2},{3}}", ((0,), (1,), (2,), (3,))),
        ("[1,4]<=[4]", ((0, 1, 2, 3),)),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=2,'y'=2] {'x','y'}", ((0, 1, 2, 3),)),
        ("mesh['x'=2,'y'=2] {'y'}", ((0, 1), (2, 3))),
    ],
)
def test_groups_are_read_in_every_notation(text, groups):
    assert parser.replica_groups(text, 4) == groups


def test_groups_that_follow_no_axis_have_none():
    assert axes_of(((0, 3), (1, 2)), {"a": 2, "b": 2}) is None
    assert axes_of(((0, 1, 2, 3),), {"a": 2, "b": 2}) == ("a", "b")


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("pred", (3,), 3),
        ("s4", (5,), 3),
        ("f8e4m3fn", (7,), 7),
        ("c128", (2, 2), 64),
        ("f32", (), 4),
    ],
)
def test_sizes_of_arrays(dtype, shape, size):
    assert parser.Array(dtype, shape).size_in_bytes == size


def test_bytes_that_leave_a_tpu_slice_are_counted_separately():
    """A psum of 512 x 512 gradients over two slices of 16 chips, as libtpu takes it apart."""
    text = (PROGRAMS / "tpu-slices-0.10.2.txt").read_text()
    found = collectives(text, {"i": 32}, slice_of=[0] * 16 + [1] * 16)

    gradients = 4 * 512 * 512
    assert [(c.kind, c.along, c.payload, c.sent, c.between) for c in found] == [
        ("reduce-scatter", "16 devices", gradients, gradients * 15 // 16, 0),
        ("all-reduce", "2 slices", gradients // 16, gradients // 16, gradients // 16),
        ("all-gather", "16 devices", gradients, gradients * 15 // 16, 0),
    ]


TRANSFER = """
ENTRY %main (x: f32[64]) -> f32[64] {{
  %x = f32[64]{{0}} parameter(0)
  %token = token[] after-all()
  %send = (f32[64]{{0}}, u32[], token[]) send(%x, %token), frontend_attributes={{{said}}}
  ROOT %y = f32[64]{{0}} negate(%x)
}}"""


@pytest.mark.parametrize(
    ("transfer", "target", "expected"),
    [
        ("ALL_REDUCE", "{1,2,3,4}x{0:3}", ("all-reduce", ("s",), 256, 2 * 192)),
        ("ALL_GATHER", "{1:4}x{0:3}", ("all-gather", ("s",), 4 * 256, 3 * 256)),
        ("REDUCE_SCATTER", "{1,2,3,4}x{0:3}", ("reduce-scatter", ("s",), 256, 192)),
        ("ALL_TO_ALL", None, ("all-to-all", ("s",), 256, 192)),
        ("ONE_TO_ONE", None, ("collective-permute", ("s",), 256, 256)),
        ("ALL_REDUCE", "{1,2}x{0:3}", ("all-reduce", None, 256, 256)),
        ("OF_TOMORROW", None, ("of-tomorrow", ("s",), 256, 192)),
    ],
)
def test_every_transfer_between_slices_is_read(transfer, target, expected):
    said = f'_xla_megascale_transfer_type="{transfer}"'
    if target is not None:
        said += f',_xla_megascale_target="{target}"'
    sizes = {"s": 4, "c": 4}
    [found] = collectives(TRANSFER.format(said=said), sizes, [k // 4 for k in range(16)])

    assert (found.kind, found.axes, found.payload, found.sent) == expected
    assert found.between == found.sent


def test_a_host_transfer_is_not_a_collective():
    assert collectives(TRANSFER.format(said='_xla_host_transfer_handler_name="x"'), {"i": 4}) == []


def test_the_share_of_an_unsplit_collective_that_leaves_a_slice_is_counted():
    text = textwrap.dedent("""
        ENTRY %main (x: f32[100]) -> f32[100] {
          %x = f32[100]{0} parameter(0)
          ROOT %y = f32[100]{0} all-reduce(%x), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
        }""")
    [one] = collectives(text, {"i": 8})
    [two] = collectives(text, {"i": 8}, [0, 0, 0, 0, 1, 1, 1, 1])

    assert (one.sent, one.between, one.slices) == (700, 0, 1)
    assert (two.sent, two.between, two.slices) == (700, 100, 2)
