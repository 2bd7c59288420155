"""A mapped function compiled for devices that are not there."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from pmapx._src import errors, fastpath
from pmapx._src.audit.hlo.collectives import collectives
from pmapx._src.audit.topology import retrace_jit
from pmapx._src.audit.topology.compile_for import compile_for
from pmapx._src.audit.topology.devices import devices_of

pytestmark = pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)
THERE = 16
WEIGHTS = {"in": np.ones((6, 8), np.float32), "out": np.ones((8, 2), np.float32)}
GRADIENT_BYTES = sum(leaf.nbytes for leaf in jax.tree.leaves(WEIGHTS))
N = jax.device_count()


@pytest.fixture(scope="module")
def there():
    return devices_of(f"cpu:{THERE}")


def loss(weights, x):
    return (jnp.tanh(x @ weights["in"]) @ weights["out"]).mean()


def step(weights, x):
    gradients = lax.pmean(jax.grad(loss)(weights, x), "i")
    return jax.tree.map(lambda w, g: w - lax.axis_size("i") * g, weights, gradients)


def found(compiled):
    return [
        (collective.kind, collective.axes, collective.group_size, collective.payload)
        for collective in collectives(compiled.compiled.as_text(), compiled.axis_sizes)
    ]


ONE_ALL_REDUCE = [("all-reduce", ("i",), THERE, GRADIENT_BYTES)]
STACKED = jax.tree.map(lambda w: np.stack([w] * N), WEIGHTS)
ROWS = np.ones((N, 4, 6), np.float32)


def test_a_pmap_grows_to_the_devices_of_the_topology(there):
    compiled = compile_for(pmapx.pmap(step, "i", donate_argnums=0), [STACKED, ROWS], there)
    assert compiled.args[1].shape == (THERE, 4, 6)
    assert compiled.axis_sizes == {"i": THERE}
    assert found(compiled) == ONE_ALL_REDUCE
    assert compiled.compiled.memory_analysis().alias_size_in_bytes == GRADIENT_BYTES
    assert compiled.compile_seconds > 0


def test_a_name_is_taken_for_the_devices():
    compiled = compile_for(pmapx.pmap(step, "i"), [STACKED, ROWS], f"cpu:{THERE}")
    assert len(compiled.devices) == THERE
    assert found(compiled) == ONE_ALL_REDUCE


def test_shapes_do_for_arguments(there):
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (STACKED, ROWS))
    assert found(compile_for(pmapx.pmap(step, "i"), shapes, there)) == ONE_ALL_REDUCE


def test_axes_static_arguments_and_keywords_are_kept(there):
    @functools.partial(
        pmapx.pmap,
        axis_name="i",
        in_axes=(None, 1),
        out_axes=1,
        static_broadcasted_argnums=2,
        axis_size=N,
    )
    def scaled(weights, x, scale, *, offset):
        return lax.psum(x, "i") * scale + offset + weights

    args = [np.ones(6), np.ones((6, N)), 3]
    compiled = compile_for(scaled, args, there, kwargs={"offset": np.ones((N, 6))})
    assert [getattr(arg, "shape", arg) for arg in compiled.args] == [(6,), (6, THERE), 3]
    assert compiled.kwargs["offset"].shape == (THERE, 6)
    assert compiled.traced.out_info.shape == (6, THERE)


@pytest.mark.parametrize("is_called_inside", [False, True])
def test_of_nested_pmaps_the_outermost_grows(there, is_called_inside):
    inner = pmapx.pmap(lambda x: lax.psum(x, ("i", "j")), "j")
    outer = pmapx.pmap((lambda x: inner(x)) if is_called_inside else inner, "i")
    compiled = compile_for(outer, [np.ones((1, 2, 3), np.float32)], there)
    if is_called_inside and jax.__version_info__ < (0, 10):
        assert compiled.axis_sizes == {"i": THERE // 2}  # The inner one runs as a batch.
        return
    assert compiled.args[0].shape == (THERE // 2, 2, 3)
    assert compiled.axis_sizes == {"i": THERE // 2, "j": 2}


def test_oversubscription_keeps_the_number_of_mapped_elements_per_device(there):
    total = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", oversubscribe=True)
    assert compile_for(total, [np.ones((3 * N, 2))], there).args[0].shape == (3 * THERE, 2)


def test_compiling_for_a_topology_does_not_count_as_a_trace(there):
    mapped = pmapx.pmap(step, "i")
    compile_for(mapped, [STACKED, ROWS], there)
    assert mapped.cache_info().traces == 0


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="its pmap does not show its options")
def test_a_function_of_jax_pmap_is_read(there):
    mapped = jax.pmap(step, "i", in_axes=(None, 0), out_axes=None, donate_argnums=0)
    compiled = compile_for(mapped, [WEIGHTS, ROWS], there)
    assert found(compiled) == ONE_ALL_REDUCE
    assert compiled.compiled.memory_analysis().alias_size_in_bytes == GRADIENT_BYTES


MESH = Mesh(np.array(jax.devices()), ("i",))


def over_mesh(mesh):
    return jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=False)


def step_over_global_mesh(weights, x):
    return over_mesh(MESH)(weights, x)


def in_a_loop(mapped):
    def loop(weights, x):
        for _ in range(2):
            weights = mapped(weights, x)
        return weights

    return loop


def with_scale(weights, x, scale):
    return jax.tree.map(lambda w: w * scale, over_mesh(MESH)(weights, x))


ROWS_OF_ALL = np.ones((4 * N, 6), np.float32)


@pytest.mark.parametrize(
    ("jitted", "args", "times"),
    [
        (jax.jit(over_mesh(MESH)), (), 1),
        (jax.jit(step_over_global_mesh), (), 1),
        (jax.jit(in_a_loop(over_mesh(MESH))), (), 2),
        (jax.jit(in_a_loop(jax.jit(over_mesh(MESH)))), (), 2),
        (jax.jit(functools.partial(lambda mesh, w, x: over_mesh(mesh)(w, x), MESH)), (), 1),
        (jax.jit(lambda w, x, *, mesh=MESH: over_mesh(mesh)(w, x)), (), 1),
        (jax.jit(with_scale, static_argnums=2), (3,), 1),
    ],
    ids=["closure", "global", "loop", "nested jit", "partial", "default", "static argument"],
)
def test_a_jitted_shard_map_is_traced_again_on_the_mesh_there(there, jitted, args, times):
    compiled = compile_for(jitted, [WEIGHTS, ROWS_OF_ALL, *args], there)
    assert compiled.args[1].shape == (4 * THERE, 6)
    assert found(compiled) == ONE_ALL_REDUCE * times


def test_arguments_tell_by_their_sharding_how_they_grow(there):
    @functools.partial(jax.jit, donate_argnums=0)
    def doubled(weights, x):
        return over_mesh(MESH)(weights, 2 * x)

    x = jax.device_put(ROWS_OF_ALL, NamedSharding(MESH, P("i")))
    compiled = compile_for(doubled, [WEIGHTS, x], there)
    assert compiled.args[1].shape == (4 * THERE, 6)
    assert compiled.compiled.memory_analysis().alias_size_in_bytes == GRADIENT_BYTES


@pytest.mark.needs_devices(2)
def test_the_first_axis_of_a_mesh_grows(there):
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("data", "model"))
    both = ("data", "model")
    f = jax.jit(
        jax.shard_map(lambda x: lax.psum(x, both), mesh=mesh, in_specs=P(*both), out_specs=P())
    )
    compiled = compile_for(f, [np.ones((3, 4), np.float32)], there)
    assert compiled.axis_sizes == {"data": THERE // 2, "model": 2}
    assert compiled.args[0].shape == (3 * THERE // 2, 4)


class Trainer:
    def __init__(self):
        self.mesh = MESH
        self.where = types.SimpleNamespace(mesh=MESH)

    def step(self, weights, x):
        return over_mesh(self.mesh)(weights, x)

    def step_deep(self, weights, x):
        return over_mesh(self.where.mesh)(weights, x)


def test_a_mesh_in_the_attribute_of_a_method_is_found(there):
    trainer = Trainer()
    compiled = compile_for(jax.jit(trainer.step), [WEIGHTS, ROWS_OF_ALL], there)
    assert found(compiled) == ONE_ALL_REDUCE
    assert trainer.mesh is MESH


def test_a_mesh_of_the_context_is_replaced(there):
    f = jax.jit(over_mesh(None))
    with jax.set_mesh(MESH):
        compiled = compile_for(f, [WEIGHTS, ROWS_OF_ALL], there)
    assert found(compiled) == ONE_ALL_REDUCE


def test_a_mesh_that_cannot_be_replaced_is_an_error():
    with pytest.raises(errors.CannotRebuild, match="still over the mesh"):
        compile_for(jax.jit(Trainer().step_deep), [WEIGHTS, ROWS_OF_ALL], "cpu:16")


def test_a_function_of_the_devices_builds_what_is_not_found(there):
    def build(devices):
        mesh = Mesh(np.array(devices), ("i",))
        return jax.jit(over_mesh(mesh)), [WEIGHTS, np.ones((4 * len(devices), 6), np.float32)]

    assert found(compile_for(None, (), there, build=build)) == ONE_ALL_REDUCE


def test_a_jit_without_a_mesh_is_refused(there):
    with pytest.raises(errors.CannotRebuild, match="has a mesh"):
        compile_for(jax.jit(jnp.sin), [np.ones(3)], there)


def test_a_recursive_function_is_copied():
    def even(n):
        return MESH if n == 0 else odd(n - 1)

    def odd(n):
        return None if n == 0 else even(n - 1)

    other = Mesh(np.array(jax.devices()[:1])[None], ("j", "i"))
    assert retrace_jit.on_mesh(even, other)(4) is other
    assert even(4) is MESH


def here():
    return Mesh(np.array(jax.devices()), ("i",))


def over_devices(body):
    return jax.shard_map(body, mesh=here(), in_specs=P("i"), out_specs=P("i"), check_vma=False)


def on(spec):
    return NamedSharding(here(), spec)


def specs(shardings):
    return [sharding.spec for sharding in jax.tree.leaves(shardings)]


def test_the_shardings_of_a_jit_are_carried_to_the_topology(there):
    """An argument that comes in whole and is split inside, an output that is gathered."""
    jitted = jax.jit(over_devices(jnp.sin), in_shardings=on(P()), out_shardings=on(P()))
    compiled = compile_for(jitted, [np.ones((N, 4), np.float32)], there)

    assert compiled.args[0].shape == (THERE, 4)
    assert specs(compiled.compiled.input_shardings) == [P()]
    assert [s.num_devices for s in jax.tree.leaves(compiled.compiled.output_shardings)] == [THERE]
    assert [kind for kind, *_ in found(compiled)] == ["all-gather"]


def test_shardings_of_some_arguments_and_outputs_are_those_of_their_leaves(there):
    mapped = over_devices(jnp.sin)

    def f(state, x, mode):
        assert mode == "train"
        return {"w": state["w"] * 2, "x": mapped(x)}

    jitted = jax.jit(
        f,
        static_argnums=2,
        in_shardings=({"w": on(P("i"))}, None),
        out_shardings={"w": on(P(None, "i")), "x": None},
    )
    args = [{"w": np.ones((N, 16), np.float32)}, np.ones((N, 4), np.float32), "train"]
    compiled = compile_for(jitted, args, there)

    assert compiled.args[0]["w"].shape == (THERE, 16)
    assert specs(compiled.compiled.input_shardings)[0] == P("i")
    out = compiled.compiled.output_shardings["w"]
    assert out.shard_shape((THERE, 16)) == (THERE, 1)


def test_a_jit_without_shard_map_grows_by_its_shardings(there):
    jitted = jax.jit(lambda x: x.sum(0), in_shardings=on(P("i")), out_shardings=on(P()))
    compiled = compile_for(jitted, [np.ones((N, 4), np.float32)], there)

    assert compiled.args[0].shape == (THERE, 4)
    assert [kind for kind, *_ in found(compiled)] == ["all-reduce"]


def test_without_shardings_of_its_own_a_jit_is_as_before(there):
    compiled = compile_for(jax.jit(over_devices(jnp.sin)), [np.ones((N, 4), np.float32)], there)

    assert found(compiled) == []
    assert specs(compiled.compiled.input_shardings) == [P("i")]


def fsdp(mesh):
    def step(w, x):
        return w - lax.psum_scatter(x.T @ (x @ lax.all_gather(w, "i", tiled=True)), "i", tiled=True)

    return jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)


def test_parameters_that_are_gathered_keep_their_shape():
    f = jax.jit(fsdp(Mesh(np.array(jax.devices()), ("i",))))
    there = compile_for(f, [np.ones((64, 4)), np.ones((8 * N, 64))], "cpu:16")

    assert [leaf.shape for leaf in there.args] == [(64, 4), (128, 64)]
    assert there.grown == (f"x: ({8 * N}, 64) -> (128, 64)",)


def test_shards_of_parameters_shrink_in_a_pmap():
    def step(w, x):
        whole = lax.all_gather(w, "i", tiled=True)
        return w - lax.psum_scatter(x.T @ (x @ whole), "i", tiled=True), x.sum()

    arguments = [np.ones((N, 64 // N, 4)), np.ones((N, 8, 64))]
    there = compile_for(pmapx.pmap(step, "i"), arguments, "cpu:16")

    assert [leaf.shape for leaf in there.args] == [(16, 4, 4), (16, 8, 64)]


# A body that needs arrays as large as the axis, the shapes of its arguments, and those there.
AS_LARGE_AS_THE_AXIS = {
    "scatter": (
        lambda v: lax.psum_scatter(v[0], "i")[None], [(N, N)], [(THERE, THERE)]
    ),
    "exchange": (
        lambda v: lax.all_to_all(v, "i", 0, 0), [(N * N,)], [(THERE * THERE,)]
    ),
    "gathered vector": (
        lambda a, v: (a @ lax.all_gather(v[0], "i").reshape(-1))[None], [(2 * N, 2 * N), (N, 2)],
        [(2 * THERE, 2 * THERE), (THERE, 2)],
    ),
}  # fmt: skip


@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("what", AS_LARGE_AS_THE_AXIS)
def test_dimensions_that_the_body_needs_as_large_as_the_axis_grow_with_it(there, what):
    body, shapes, expected = AS_LARGE_AS_THE_AXIS[what]
    mesh = Mesh(np.array(jax.devices()), ("i",))
    f = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    compiled = compile_for(jax.jit(f), [np.ones(shape, np.float32) for shape in shapes], there)

    assert [leaf.shape for leaf in compiled.args] == expected


def test_in_a_pmap_they_grow_too(there):
    f = pmapx.pmap(lambda v: lax.psum_scatter(v, "i"), "i")

    assert compile_for(f, [np.ones((N, N))], there).args[0].shape == (THERE, THERE)


def test_scale_overrides_which_arguments_grow():
    f = jax.jit(fsdp(Mesh(np.array(jax.devices()), ("i",))))

    def shapes(**scale):
        mapped = jax.jit(lambda w, x: (w * 2, x * 2))
        sharding = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
        placed = [jax.device_put(np.ones((16 * N, 4)), sharding) for _ in range(2)]
        return [leaf.shape for leaf in compile_for(mapped, placed, "cpu:16", scale=scale).args]

    assert shapes(w=None, x=0) == [(16 * N, 4), (256, 4)]
    assert shapes(w=0, x=None) == [(256, 4), (16 * N, 4)]
    with pytest.raises(errors.ShapesDoNotFit, match=r"w: .* -> "):
        compile_for(f, [np.ones((64, 4)), np.ones((8 * N, 64))], "cpu:16", scale={"w": 0})


def test_state_that_cannot_be_divided_is_named():
    f = jax.jit(fsdp(Mesh(np.array(jax.devices()), ("i",))))
    with pytest.raises(errors.UndividedState, match=r"of w has 24 elements, which 16 devices"):
        compile_for(f, [np.ones((24, 4)), np.ones((8 * N, 24))], "cpu:16")


def test_an_audit_takes_what_a_function_builds_for_the_devices():
    def build(devices):
        x = jax.ShapeDtypeStruct((len(devices), 4), np.float32)
        return pmapx.pmap(lambda x: lax.psum(x, "i"), "i", devices=devices), (x,)

    (here,) = pmapx.audit(build=build).functions
    (there,) = pmapx.audit(build=build, topology="cpu:1", scaling="cpu:1").functions

    assert (here.device_count, there.device_count) == (N, 1)
    assert [point.devices for point in there.scaling.points] == [1]


def test_an_argument_placed_on_a_mesh_with_another_axis_name_is_followed():
    f = jax.jit(fsdp(Mesh(np.array(jax.devices()), ("i",))))
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))
    x = jax.device_put(np.ones((8 * N, 64), np.float32), rows)

    there = compile_for(f, [np.ones((64, 4)), x], "cpu:16")

    assert [leaf.shape for leaf in there.args] == [(64, 4), (128, 64)]


@pytest.mark.needs_devices(2)
def test_a_mesh_of_as_many_devices_as_shards_is_made_of_those_there():
    def mapped(x):
        mesh = jax.make_mesh((len(x),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)

    there = compile_for(jax.jit(mapped), [np.ones((N, 4))], "cpu:16")

    assert there.args[0].shape == (16, 4)


@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("has_list", [False, True])
def test_a_mesh_that_is_made_while_tracing_has_the_devices_there(has_list):
    chosen = jax.devices() if has_list else None

    def mapped(x):
        mesh = Mesh(np.array(jax.devices() if chosen is None else chosen), ("i",))
        return jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)

    there = compile_for(jax.jit(mapped), [np.ones((N, 4))], "cpu:16")

    assert there.args[0].shape == (16, 4)
    assert jax.device_count() == N
