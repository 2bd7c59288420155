"""Errors say what, where and how to fix it (C1-C6); each is reachable and leaves no damage."""

import dataclasses
import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import pmapx
from oracle import assert_same
from pmapx._src import errors
from pmapx._src.audit.running.request import function_named
from pmapx._src.audit.topology.compile_for import compile_for
from pmapx._src.audit.topology.devices import devices_of
from pmapx._src.fastpath import probes
from pmapx._src.multihost.agreement import Difference

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


def step(state, batch):
    return jax.tree.map(lambda x: x.sum() + state.sum(), batch)


def elsewhere():
    return jax.device_put(ROWS, jax.devices()[-1])


def shape(*sizes):
    """A shape in a message, as `f32[8,4]` or as `(8, 4)`."""
    return r"[\[(]" + ", ?".join(map(str, sizes)) + r",?[\])]"


def axis(number):
    return rf"axis {number}|axis=?{number}|axes?.*{number}"


def trigger_move_forbidden():
    mapped = pmapx.pmap(step)
    mapped(ROWS, ROWS)
    with jax.transfer_guard("disallow"):
        mapped(elsewhere(), ROWS)


def trigger_pmap_sharding():
    from pmapx._src.legacy import pmap_sharding_and_flags

    pmap_sharding_and_flags.PmapSharding(jax.devices(), "spec")


def fail_a_probe():
    piece = probes.Piece("dispatch", lambda: None, "calls take longer")
    probes.PIECES.remove(piece)
    piece._usable = None  # On public JAX alone, too.
    piece.fail(AttributeError("no such thing"))
    probes.warn_of_pending()


def trigger_removed_flag():
    if hasattr(jax.config, "jax_pmap_no_rank_reduction"):
        pytest.skip("this release of JAX has the flag")
    with pmapx.install():
        jax.config.update("jax_pmap_no_rank_reduction", True)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A way to bring an error about, and what its text must say (regular expressions)."""

    make: object
    says: tuple[str, ...]
    kind: type = ValueError
    devices: int = 1


def throw(error):
    raise error


# Brought about in real processes by tests/multihost; here it is their words that are looked at.
DIFFERENCE = Difference(0, {0: "this", 1: "that", 2: "this"})
ACROSS_PROCESSES = [
    (
        errors.UnevenProcessShards("step", "argument 0 'x'", 3, 4, {0: 4, 1: 2}),
        ("argument 0 'x'", "size 3", "process 1 has 2", axis("")),
        ValueError,
    ),
    (errors.NoLocalDevices(2, [0, 1]), ("process 2", r"\[0, 1\]"), ValueError),
    (errors.ShardAcrossProcesses({"i": 2, "j": 3}, 1), ("'j': 3", "process 1"), ValueError),
    (
        errors.LocalSizeMismatch("step", "argument 0 'x'", 3, 2, 4, 1),
        ("process 1 passed argument 0 'x' with local size 3", "owns 2 of its 4 shards"),
        ValueError,
    ),
    (
        errors.CompiledForAnotherTree("step", "different types at key path\n    args[0]"),
        ("step", "compiled with input pytree does not match", r"args\[0\]"),
        TypeError,
    ),
    (
        errors.CompiledForAnotherShape("step", "argument 0 'x'", (1, 3), (2, 3)),
        ("argument 0 'x'", shape(1, 3), shape(2, 3)),
        TypeError,
    ),
    (
        errors.ReplicasDiffer("step", "argument 0 'w' at ['a']", DIFFERENCE),
        (r"argument 0 'w' at \['a'\]", "processes 0, 2: this", "process 1: that"),
        ValueError,
    ),
    (errors.CallsDiffer("step", DIFFERENCE), ("called step", "process 1: that"), RuntimeError),
    (errors.StitchShapesDiffer(DIFFERENCE), ("stitch", "process 1: that"), ValueError),
    (
        errors.CannotStitch("['y']", (3, 2), "P('i',)", {"i": 2}),
        (r"\['y'\]", shape(3, 2), "'i': 2"),
        ValueError,
    ),
    (errors.CannotUnstitch("(4, 2)", "GSPMDSharding"), (shape(4, 2), "GSPMD"), TypeError),
    (
        errors.BarrierTimeout("ready", 5.0, [1, 3], 0),
        ("'ready'", "5 seconds", "processes 1, 3 did not reach"),
        TimeoutError,
    ),
    (
        errors.DonatedInputResharded("step", "argument 0 'x'", "float32[2,3]"),
        ("argument 0 'x'", shape(2, 3)),
        UserWarning,
    ),
]

MISTAKES = {
    "PMX001": Mistake(lambda: pmapx.pmap(3), ("3", "int"), TypeError),
    "PMX002": Mistake(lambda: pmapx.pmap(step, in_axes=(0, 0.5)), ("in_axes", r"0\.5"), TypeError),
    "PMX003": Mistake(
        lambda: pmapx.pmap(step, reshard="maybe"), ("reshard", "maybe", "allow", "warn", "error")
    ),
    "PMX004": Mistake(lambda: pmapx.pmap(step, devices=[])(ROWS), ("devices",)),
    "PMX005": Mistake(
        lambda: pmapx.pmap(step, devices=jax.devices()[:1] * 2), ("devices", str(jax.devices()[0]))
    ),
    "PMX006": Mistake(
        lambda: pmapx.pmap(step, static_broadcasted_argnums=1, donate_argnums=(0, 1)),
        ("donate_argnums", "static_broadcasted_argnums", "1"),
    ),
    "PMX101": Mistake(
        lambda: pmapx.pmap(step)(ROWS, {"image": np.zeros((N + 1, 3)), "label": ROWS}),
        (
            r"argument 0 'state'",
            r"argument 1 'batch' at \['image'\]",
            shape(N, 4),
            shape(N + 1, 3),
            axis(0),
        ),
    ),
    "PMX102": Mistake(
        lambda: pmapx.pmap(step, in_axes=(0, {"image": 2}))(ROWS, {"image": ROWS}),
        (r"argument 1 'batch' at \['image'\]", shape(N, 4), axis(2), "rank"),
    ),
    "PMX103": Mistake(
        lambda: pmapx.pmap(step)(ROWS, {"image": 1.5}),
        (r"argument 1 'batch' at \['image'\]", axis(0), r"\(0, None\)|in_axes|None"),
    ),
    "PMX104": Mistake(
        lambda: pmapx.pmap(step)(ROWS, {"image": ROWS, "name": "cat"}),
        (r"argument 1 'batch' at \['name'\]", "cat", "str"),
        TypeError,
    ),
    "PMX105": Mistake(
        lambda: pmapx.pmap(step, in_axes=(0, {"image": 0, "label": 0}))(ROWS, {"image": ROWS}),
        (r"argument 1 'batch'", "in_axes", "label"),
    ),
    "PMX106": Mistake(lambda: pmapx.pmap(step, out_axes=(0, 0))(ROWS, ROWS), ("out_axes",)),
    "PMX107": Mistake(
        lambda: pmapx.pmap(step, out_axes={"image": 3})(ROWS, {"image": ROWS}),
        (r"output.*\['image'\]", axis(3), shape()),
    ),
    "PMX108": Mistake(
        lambda: pmapx.pmap(step, in_axes=None)(ROWS, ROWS), ("axis_size", r"in_axes|mapped")
    ),
    "PMX109": Mistake(
        lambda: pmapx.pmap(step, axis_size=N + 1)(ROWS, ROWS),
        (r"argument 0 'state'", "axis_size", str(N + 1), shape(N, 4)),
    ),
    "PMX110": Mistake(
        lambda: pmapx.pmap(step, static_broadcasted_argnums=1)(ROWS, ["unhashable"]),
        (r"argument 1 'batch'", "list", "hash"),
    ),
    "PMX111": Mistake(
        lambda: pmapx.pmap(step, static_broadcasted_argnums=1)(ROWS),
        (r"argument 1 'batch'", "static_broadcasted_argnums"),
    ),
    "PMX112": Mistake(
        lambda: pmapx.pmap(lambda x: {"x": x, "note": "text"})(ROWS),
        (r"\['note'\]", "text|str"),
        TypeError,
    ),
    "PMX113": Mistake(
        lambda: pmapx.pmap(step)(np.zeros((0, 3)), np.zeros((0, 3))),
        (r"argument 0 'state'", shape(0, 3), axis(0)),
    ),
    "PMX121": Mistake(
        lambda: pmapx.device_put_sharded(ROWS, jax.devices()),
        (r"argument 0 'shards'", "ndarray", shape(N, 4)),
        TypeError,
    ),
    "PMX122": Mistake(
        lambda: pmapx.device_put_sharded([ROWS] * (N + 1), jax.devices()),
        (r"argument 0 'shards'", str(N + 1), str(N)),
    ),
    "PMX123": Mistake(
        lambda: pmapx.device_put_sharded([{"w": ROWS}, {"w": ROWS[:, :2]}], jax.devices()[:2]),
        (r"shards\[0\]\['w'\]", r"shards\[1\]\['w'\]", shape(N, 4), shape(N, 2), axis(0)),
        devices=2,
    ),
    "PMX124": Mistake(
        lambda: jax.jit(lambda x: pmapx.replicate({"w": x}))(ROWS),
        (r"tree\['w'\]", "tracer", shape(N, 4)),
        TypeError,
    ),
    "PMX125": Mistake(
        lambda: pmapx.replicate({"w": ROWS, "name": "cat"}),
        (r"tree\['name'\]", "cat", "str"),
        TypeError,
    ),
    "PMX126": Mistake(
        lambda: pmapx.unreplicate({"w": ROWS, "step": np.float32(1)}),
        (r"tree\['step'\]", shape(), axis(0), "scalar"),
    ),
    "PMX127": Mistake(
        lambda: pmapx.shard_batch({"x": np.zeros((2 * N + 1, 3))}),
        (r"tree\['x'\]", shape(2 * N + 1, 3), axis(0), str(N)),
        devices=2,
    ),
    "PMX128": Mistake(
        lambda: next(pmapx.prefetch([{"x": np.zeros((N + 1, 3))}])),
        (r"item\['x'\]", shape(N + 1, 3), axis(0), str(N)),
    ),
    "PMX129": Mistake(
        lambda: pmapx.local_slice({"w": ROWS}, N),
        (r"argument 0 'x'", str(N), shape(N, 4), axis(0)),
        IndexError,
    ),
    "PMX131": Mistake(trigger_pmap_sharding, ("PmapSharding", "NamedSharding"), TypeError),
    "PMX201": Mistake(
        lambda: pmapx.pmap(step)(np.zeros((2 * N, 3)), np.zeros((2 * N, 2))),
        (f"requires {2 * N} logical devices", str(N), r"argument 0 'state'", shape(2 * N, 3)),
    ),
    "PMX202": Mistake(
        lambda: pmapx.pmap(pmapx.pmap(lambda x: x, "inner"), "outer")(np.zeros((N, 2))),
        ("'outer'", "'inner'", rf"\b{2 * N}\b", rf"\b{N}\b"),
    ),
    "PMX203": Mistake(
        lambda: pmapx.pmap(pmapx.pmap(lambda x: x, "inner", devices=jax.devices()[:1]), "outer")(
            np.zeros((1, 1))
        ),
        ("devices", "'inner'", "'outer'"),
    ),
    "PMX211": Mistake(lambda: devices_of("v5e:3d"), ("'v5e:3d'", "family:shape", "v5e:16x16")),
    "PMX212": Mistake(
        lambda: throw(errors.NoCompiler("v5e:4x4", "libtpu", "pip install 'pmapx[tpu]'")),
        ("'v5e:4x4'", "libtpu", "pip install"),
        RuntimeError,
    ),
    "PMX213": Mistake(
        lambda: throw(errors.NoTopologyFromCompiler("v5e:4x4", "it is busy", "wait.")),
        ("'v5e:4x4'", "it is busy", "wait"),
        RuntimeError,
    ),
    "PMX214": Mistake(
        lambda: throw(errors.TooFewCpuDevices(64, 8)),
        ("'cpu:64'", "has 8", "device_count=64"),
        RuntimeError,
    ),
    "PMX215": Mistake(lambda: compile_for(np.sin, [1.0], jax.devices()), ("sin", "build=")),
    "PMX216": Mistake(
        lambda: compile_for(
            pmapx.pmap(pmapx.pmap(lambda x: x)), [np.ones((1, 5))], jax.devices()[:1]
        ),
        ("5 devices", "1 devices"),
    ),
    "PMX217": Mistake(
        lambda: compile_for(
            pmapx.pmap(lambda x: x @ np.ones((lax.psum(1, "i"), 2)), "i"),
            [np.ones((N, N))],
            _other_devices(),
        ),
        ("cannot be traced for", r"x: \(\d+, \d+\) -> ", "--fixed"),
    ),
    "PMX218": Mistake(
        lambda: throw(errors.UndividedState("step", "state['w']", 100, 256)),
        (r"state\['w'\]", "100 elements", "256 devices"),
    ),
    "PMX219": Mistake(
        lambda: pmapx.audit(pmapx.pmap(step), ROWS, {"image": ROWS}, scale={"batc": 0}),
        ("'batc'", "state, batch"),
    ),
    "PMX220": Mistake(
        lambda: compile_for(None, (), jax.devices(), build=lambda devices: step),
        ("returned function", r"\(mapped_function, \("),
        TypeError,
    ),
    "PMX221": Mistake(lambda: function_named("math:nothing"), ("math:nothing", "module:function")),
    "PMX301": Mistake(
        lambda: pmapx.pmap(step, reshard="error")(ROWS, {"image": elsewhere()}),
        (
            r"argument 1 'batch' at \['image'\]",
            shape(N, 4),
            "SingleDeviceSharding",
            "NamedSharding",
        ),
        devices=2,
    ),
    "PMX302": Mistake(
        trigger_move_forbidden,
        (r"argument 0 'state'", shape(N, 4), "transfer.guard"),
        devices=2,
    ),
    **{
        error.code: Mistake(functools.partial(throw, error), says, kind)
        for error, says, kind in ACROSS_PROCESSES
    },
    "PMX413": Mistake(
        pmapx.initialize, ("coordinator_address", "num_processes", "SLURM_JOB_ID"), RuntimeError
    ),
    "PMX414": Mistake(
        lambda: pmapx.initialize("nowhere", 2, 1),
        ("process 1", "nowhere", "host:port"),
        RuntimeError,
    ),
    "PMX691": Mistake(lambda: pmapx.audit(ROWS, ROWS), ("ndarray|Array", "function"), TypeError),
    "PMX692": Mistake(lambda: pmapx.audit(step, ROWS, ROWS, what_if="zero"), ("'zero'", "fsdp")),
    "PMX901": Mistake(
        lambda: pmapx.pmap(step, reshard="warn")(ROWS, {"image": elsewhere()}),
        (r"argument 1 'batch' at \['image'\]", shape(N, 4)),
        UserWarning,
        devices=2,
    ),
    "PMX902": Mistake(
        lambda: pmapx.pmap(step, donate_argnums=1)(ROWS, {"image": jnp.asarray(ROWS)}),
        (r"argument 1 'batch' at \['image'\]", shape(N, 4)),
        UserWarning,
    ),
    "PMX903": Mistake(
        lambda: pmapx.pmap(step, out_axes=None)(ROWS, {"image": ROWS}),
        (r"output.*\['image'\]", "out_axes"),
        UserWarning,
        devices=2,
    ),
    "PMX904": Mistake(
        lambda: pmapx.pmap(step, oversubscribe=True)(np.zeros(N + 1), np.zeros(N + 1)),
        (str(N + 1), str(N)),
        UserWarning,
        devices=2,
    ),
    "PMX905": Mistake(trigger_removed_flag, ("jax_pmap_no_rank_reduction", "removed"), UserWarning),
    "PMX913": Mistake(
        fail_a_probe, ("dispatch", "no such thing", re.escape(jax.__version__)), UserWarning
    ),
}


def _other_devices():
    """Devices in another number than here."""
    return jax.devices()[:1] if N > 1 else devices_of("cpu:2")


def caught(code):
    """The error or warning that the mistake of this code brings about."""
    mistake = MISTAKES[code]
    if mistake.devices > N:
        pytest.skip(f"needs {mistake.devices} devices, {N} are there")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmapx.PmapxWarning)
        with pytest.raises((pmapx.PmapxError, pmapx.PmapxWarning)) as raised:
            mistake.make()
    return raised.value


def test_there_is_a_mistake_for_every_code():
    assert MISTAKES.keys() == errors.CODES.keys()


@pytest.mark.parametrize("code", MISTAKES)
def test_the_mistake_raises_the_error_with_its_code(code):
    error = caught(code)

    assert error.code == code
    assert type(error) is errors.CODES[code]


@pytest.mark.parametrize("code", MISTAKES)
def test_existing_except_clauses_catch_it(code):
    assert isinstance(caught(code), MISTAKES[code].kind)


@pytest.mark.parametrize("code", MISTAKES)
def test_the_text_has_the_argument_the_shape_the_axis_the_fix_and_the_code(code):
    text = str(caught(code))

    for part in MISTAKES[code].says:
        assert re.search(part, text), f"no {part!r} in:\n{text}"
    assert re.search(r"\bfix: \S", text)
    assert code in text


@pytest.mark.parametrize("code", MISTAKES)
def test_messages_have_no_names_of_jax_internals(code):
    text = str(caught(code))

    for word in ["flat_args", "pjit", "squeeze", "<locals>", " at 0x"]:
        assert word not in text


@pytest.mark.parametrize("code", MISTAKES)
def test_explain_expands_the_code(code):
    explanation = errors.explain(code)

    assert code in explanation
    assert len(explanation.splitlines()) > 2


@pytest.mark.behaviour("C1")
def test_all_mapped_sizes_that_differ_are_told():
    with pytest.raises(ValueError, match="PMX101") as raised:
        pmapx.pmap(lambda *xs: xs)(np.zeros(N), np.zeros(N), np.zeros((N + 2, 1)))

    assert "argument 2" in str(raised.value)
    assert re.search(shape(N + 2, 1), str(raised.value))


@pytest.mark.behaviour("C1")
def test_a_keyword_argument_is_named_by_its_keyword():
    with pytest.raises(ValueError, match="PMX101") as raised:
        pmapx.pmap(lambda x, *, weight: x)(ROWS, weight=np.zeros(N + 1))

    assert "'weight'" in str(raised.value)


@pytest.mark.behaviour("C1")
def test_the_sizes_are_compared_along_each_arguments_own_axis():
    with pytest.raises(ValueError, match="PMX101") as raised:
        pmapx.pmap(step, in_axes=(0, -1))(ROWS, np.zeros((N, N + 3)))

    assert str(N + 3) in str(raised.value)


@pytest.mark.behaviour("C2")
@pytest.mark.parametrize("in_axis", [1, 2, -2])
def test_a_rank_too_low_tells_rank_shape_and_axis(in_axis):
    with pytest.raises(ValueError, match="PMX102") as raised:
        pmapx.pmap(lambda x: x, in_axes=in_axis)(np.zeros(N))

    text = str(raised.value)
    assert "argument 0 'x'" in text
    assert re.search(shape(N), text)
    assert str(in_axis) in text


@pytest.mark.behaviour("C3")
def test_an_axis_larger_than_the_device_count_reports_both_numbers():
    with pytest.raises(ValueError, match=f"requires {2 * N} logical devices") as raised:
        pmapx.pmap(lambda x: x)(np.zeros(2 * N))

    assert f"only {N}" in str(raised.value)


@pytest.mark.behaviour("C3")
def test_an_axis_larger_than_the_given_devices_is_an_error():
    with pytest.raises(ValueError, match="requires 3 logical devices"):
        pmapx.pmap(lambda x: x, devices=jax.devices()[:1])(np.zeros(3))


@pytest.mark.behaviour("C3")
def test_an_axis_size_above_the_device_count_is_refused_too():
    with pytest.raises(ValueError, match=f"requires {N + 1} logical devices"):
        pmapx.pmap(lambda: 1.0, axis_size=N + 1)()


@pytest.mark.behaviour("C4")
@pytest.mark.parametrize("scalar", [1, 2.0, True, 3j, np.float32(1), np.array(1), jnp.array(1)])
def test_a_scalar_where_an_array_is_mapped(scalar):
    with pytest.raises(ValueError, match="PMX103") as raised:
        pmapx.pmap(lambda x, y: x)(ROWS, scalar)

    assert "argument 1 'y'" in str(raised.value)


@pytest.mark.behaviour("C5")
@pytest.mark.parametrize(
    "thing",
    ["text", object(), {1, 2}, np.array(["a"] * N), np.array([None] * N), b"bytes", len],
    ids=lambda thing: type(thing).__name__ + getattr(thing, "dtype", np.dtype("O")).kind,
)
@pytest.mark.parametrize("in_axis", [0, None])
def test_an_argument_that_is_not_an_array_is_an_error(thing, in_axis):
    with pytest.raises(TypeError, match="PMX104") as raised:
        pmapx.pmap(lambda x, y: x, in_axes=(0, in_axis))(ROWS, {"deep": [thing]})

    assert "argument 1 'y' at ['deep'][0]" in str(raised.value)


@pytest.mark.behaviour("C5")
@pytest.mark.parametrize("dtype", ["<U1", "object", "datetime64[s]", ">f4"])
def test_an_array_of_a_type_that_jax_has_not_tells_the_type(dtype):
    with pytest.raises(TypeError, match="PMX104") as raised:
        pmapx.pmap(lambda x: x)(np.zeros(N, dtype))

    assert dtype in str(raised.value)
    assert "no shape" not in str(raised.value)


class Model:
    def apply(self, state, batch):
        return state

    def __call__(self, state, batch):
        return state


def decorated(fun):
    @functools.wraps(fun)
    def inner(*args, **kwargs):
        return fun(*args, **kwargs)

    return inner


CALLABLES = {
    "function": step,
    "method": Model().apply,
    "object": Model(),
    "partial": functools.partial(lambda bound, state, batch: state, 1),
    "decorated": decorated(step),
    "jit": jax.jit(step),
    "grad": jax.grad(step),
    "remat": jax.checkpoint(step),
    "pmap": pmapx.pmap(step),
}


@pytest.mark.behaviour("C4")
@pytest.mark.parametrize("fun", CALLABLES.values(), ids=CALLABLES.keys())
def test_every_kind_of_callable_has_its_arguments_named(fun):
    with pytest.raises(ValueError, match="argument 1 'batch'"):
        pmapx.pmap(fun)(ROWS, 1.0)


@pytest.mark.behaviour("C6")
@pytest.mark.parametrize(
    ("in_axes", "args"),
    [
        ((0,), (ROWS, ROWS)),
        ((0, 0, 0), (ROWS, ROWS)),
        ((0, (0, 0)), (ROWS, [ROWS, ROWS])),
        ((0, (0, 0)), (ROWS, (ROWS, ROWS, ROWS))),
        ((0, {"a": 0}), (ROWS, {"b": ROWS})),
        ((0, [0]), (ROWS, ROWS)),
    ],
    ids=["too short", "too long", "list for tuple", "wrong length", "wrong key", "leaf for list"],
)
def test_in_axes_that_are_not_a_prefix_are_explained(in_axes, args):
    with pytest.raises(ValueError, match="PMX105") as raised:
        pmapx.pmap(step, in_axes=in_axes)(*args)

    assert "in_axes" in str(raised.value)
    assert re.search(r"^\s*fix: ", str(raised.value), re.MULTILINE)


@pytest.mark.behaviour("C1")
@pytest.mark.parametrize(
    "stage",
    [
        lambda f: f,
        lambda f: f.lower,
        lambda f: f.trace,
        lambda f: f.eval_shape,
        lambda f: jax.jit(f),
        lambda f: lambda *args: jax.eval_shape(f, *args),
        lambda f: jax.make_jaxpr(f),
        lambda f: jax.vmap(f, in_axes=None, axis_size=2),
        lambda f: lambda *args: jax.vjp(f, *args),
    ],
    ids=["call", "lower", "trace", "eval_shape", "jit", "jax.eval_shape", "jaxpr", "vmap", "vjp"],
)
def test_every_stage_gives_the_same_error(stage):
    with pytest.raises(ValueError, match="PMX101") as raised:
        stage(pmapx.pmap(step))(ROWS, np.zeros((N + 1, 3), np.float32))

    assert "argument 1 'batch'" in str(raised.value)


@pytest.mark.behaviour("C2")
def test_the_fields_of_a_registered_class_are_named():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        weight: object
        bias: object

    with pytest.raises(ValueError, match=r"argument 0 'state' at \.bias"):
        pmapx.pmap(step, in_axes=(1, 0))(State(ROWS, np.zeros(N)), ROWS)


@pytest.mark.behaviour("C4")
def test_an_argument_without_a_name_is_reported_by_position():
    with pytest.raises(ValueError, match="argument 1"):
        pmapx.pmap(lambda *xs: xs)(ROWS, 1.0)


@pytest.mark.behaviour("C4")
def test_the_message_names_the_pmapped_function():
    with pytest.raises(ValueError, match="step"):
        pmapx.pmap(step)(ROWS, 1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"in_axes": "x"},
        {"out_axes": 1.5},
        {"in_axes": (0, "x")},
        {"out_axes": {"a": "x"}},
        {"in_axes": P("i")},
    ],
    ids=str,
)
def test_axes_that_are_not_integers_raise_a_type_error(options):
    with pytest.raises(TypeError, match="PMX002"):
        pmapx.pmap(step, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"static_broadcasted_argnums": "x"},
        {"static_broadcasted_argnums": 1.5},
        {"donate_argnums": (0, "x")},
        {"donate_argnums": None},
        {"static_broadcasted_argnums": -7},
    ],
    ids=str,
)
def test_argument_numbers_that_are_none_are_refused(options):
    with pytest.raises(ValueError, match="PMX006"):
        pmapx.pmap(step, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"reshard": None},
        {"axis_size": 0},
        {"axis_size": -1},
        {"axis_size": 2.5},
        {"devices": ["cpu:0"]},
        {"devices": 3},
    ],
    ids=str,
)
def test_other_options_that_make_no_sense_are_refused_at_once(options):
    with pytest.raises(pmapx.PmapxError):
        pmapx.pmap(step, **options)


def test_an_axis_size_that_disagrees_is_refused():
    with pytest.raises(ValueError, match="PMX109"):
        pmapx.pmap(lambda x: x, axis_size=N)(np.zeros(N + 1))


@pytest.mark.behaviour("C1")
def test_a_failed_call_leaves_the_function_usable():
    mapped = pmapx.pmap(step)
    mapped.clear_cache()  # Other tests map the same function.
    before = mapped(ROWS, ROWS)

    for bad in [np.zeros(N + 1), 1.0, "text", np.zeros((2 * N, 2))]:
        with pytest.raises(pmapx.PmapxError):
            mapped(ROWS, bad)

    assert_same(mapped(ROWS, ROWS), before)
    assert mapped.cache_info().compiles == 1


def test_a_function_that_fails_first_works_next():
    fail = True

    def fun(x):
        if fail:
            raise RuntimeError("not yet")
        return x + 1

    mapped = pmapx.pmap(fun)
    with pytest.raises(RuntimeError, match="not yet"):
        mapped(ROWS)
    fail = False

    assert_same(mapped(ROWS), jnp.asarray(ROWS + 1))


@pytest.mark.parametrize(
    "bad",
    [np.zeros(N + 1, np.float32), 1.0, "text", np.zeros((N, 3), np.float32)],
    ids=["size", "scalar", "str", "body"],
)
@pytest.mark.parametrize("warm", [False, True])
def test_a_failed_call_leaves_donated_inputs_alone(bad, warm):
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    state = jax.device_put(ROWS, NamedSharding(mesh, P("rows")))
    mapped = pmapx.pmap(lambda state, batch: state + batch, donate_argnums=0)
    if warm:
        mapped(jax.device_put(ROWS, state.sharding), ROWS)

    with pytest.raises((pmapx.PmapxError, TypeError, ValueError)):
        mapped(state, bad)

    assert not state.is_deleted()
    np.testing.assert_array_equal(state, ROWS)
    assert_same(mapped(state, ROWS), jnp.asarray(2 * ROWS))


@pytest.mark.needs_devices(2)
def test_a_refused_move_leaves_donated_inputs_alone():
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    state = jax.device_put(ROWS, NamedSharding(mesh, P("rows")))
    misplaced = elsewhere()
    mapped = pmapx.pmap(lambda a, b: (a + b, b), donate_argnums=(0, 1), reshard="error")

    with pytest.raises(ValueError, match="PMX301"):
        mapped(state, misplaced)

    assert not state.is_deleted()
    assert not misplaced.is_deleted()


@pytest.mark.needs_devices(2)
def test_a_failing_call_leaves_a_misplaced_donated_input_alone():
    misplaced = elsewhere()
    mapped = pmapx.pmap(lambda a, b: a + b, donate_argnums=0)

    with pytest.raises(pmapx.PmapxError):
        mapped(misplaced, np.zeros(N + 1))

    np.testing.assert_array_equal(misplaced, ROWS)


def test_an_unbound_axis_name_is_still_a_name_error():
    with pytest.raises(NameError):
        pmapx.pmap(lambda x: lax.psum(x, "nowhere"), "i")(ROWS)


def test_a_wrong_number_of_arguments_is_still_a_type_error():
    with pytest.raises(TypeError, match="batch"):
        pmapx.pmap(step)(ROWS)


def test_a_static_argument_passed_by_keyword_is_asked_for_by_position():
    def scaled(x, factor=2):
        return x * factor

    mapped = pmapx.pmap(scaled, static_broadcasted_argnums=1)

    with pytest.raises(pmapx.PmapxError, match="PMX111") as raised:
        mapped(ROWS, factor=3)
    assert "argument 1 'factor' was passed by keyword" in str(raised.value)
    assert "must be passed positionally" in str(raised.value)
    with pytest.raises(pmapx.PmapxError, match="'factor' is missing"):
        mapped(ROWS)


def test_a_static_argument_without_a_hash_is_refused_at_any_call():
    mapped = pmapx.pmap(lambda n, x: x, static_broadcasted_argnums=0)

    with pytest.raises(ValueError, match="PMX110"):
        mapped([1], ROWS)
    mapped((1,), ROWS)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        mapped([1], ROWS)
