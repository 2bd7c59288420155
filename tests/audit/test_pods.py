"""Programs for pods of TPUs, compiled where there is none; `make test-tpu` has the compiler."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_audit_of_migrated_programs import FAST, check

import pmapx
from pmapx._src.audit.hlo.collectives import collectives
from pmapx._src.audit.topology.compile_for import compile_for, scaling
from pmapx._src.audit.topology.names import several

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="make test-tpu has libtpu"
    ),
]
N = jax.device_count()
WEIGHTS = {
    "in": np.ones((256, 512), np.float32),
    "bias": np.ones(512, np.float32),
    "out": np.ones((512, 128), np.float32),
}
STATE = {"weights": WEIGHTS, "momentum": WEIGHTS, "step": np.int32(0)}
GRADIENT_BYTES = sum(leaf.nbytes for leaf in jax.tree.leaves(WEIGHTS))


def loss(weights, images, labels):
    hidden = jax.nn.relu(images @ weights["in"] + weights["bias"])
    return ((hidden @ weights["out"] - labels) ** 2).mean()


def train(state, images, labels):
    gradients = lax.pmean(jax.grad(loss)(state["weights"], images, labels), "i")
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    weights = jax.tree.map(lambda w, m: w - 0.1 * m, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum, "step": state["step"] + 1}


def stacked(rows):
    state = jax.tree.map(lambda leaf: np.stack([leaf] * rows), STATE)
    return state, np.ones((rows, 8, 256), np.float32), np.ones((rows, 8, 128), np.float32)


def pmapped():
    return pmapx.pmap(train, "i", donate_argnums=0), stacked(N)


def sharded():
    mesh = Mesh(np.array(jax.devices()), ("i",))
    f = jax.shard_map(
        train, mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=P(), check_vma=False
    )
    batch = np.ones((8 * N, 256), np.float32), np.ones((8 * N, 128), np.float32)
    return jax.jit(f, donate_argnums=0), (STATE, *batch)


@pytest.mark.parametrize("make", [pmapped, sharded])
@pytest.mark.parametrize("topology", ["v5e:16x16", "v4:4x8x8", "v5p:4x8x8", "v6e:16x16"])
def test_a_training_step_on_256_chips_reduces_its_gradients_and_nothing_else(make, topology):
    mapped, args = make()
    there = compile_for(mapped, args, topology)
    assert there.axis_sizes == {"i": 256}
    [only] = collectives(there.compiled.as_text(), there.axis_sizes)
    assert (only.kind, only.group_size, only.times) == ("all-reduce", 256, 1)
    assert only.payload == GRADIENT_BYTES
    assert "test_pods.py" in only.place
    assert "all-gather" not in there.compiled.as_text()


def test_several_slices_are_compiled_for():
    mapped, args = pmapped()
    there = compile_for(mapped, args, "2x v5e:4x4")
    found = collectives(there.compiled.as_text(), there.axis_sizes)
    assert len(there.devices) == 32
    assert found
    assert {collective.kind for collective in found} <= {"all-reduce", "reduce-scatter",
                                                         "all-gather"}  # fmt: skip


def test_nothing_grows_from_8_to_4096_chips():
    mapped, args = sharded()
    found = scaling(mapped, args, several("v5p:8,4096"))
    assert found.growing == ()
    assert {sum(point.payloads.values()) for point in found.points} == {GRADIENT_BYTES}


def test_a_gather_that_grows_is_named():
    def gathers(x):
        return lax.all_gather(x, "i").mean(0)

    found = scaling(
        pmapx.pmap(gathers, "i"), [np.ones((N, 1024, 128), np.float32)], several("v5p:8,64")
    )
    # XLA may write the gather of 64 as a reduction; it is as large.
    largest = max(growth.many for growth in found.growing if growth.what.startswith("all-"))
    assert largest >= 64 * 1024 * 128 * 4


def test_outputs_proven_equal_are_replicated_on_a_pod():
    step = pmapx.pmap(
        lambda w, x: (w - lax.pmean(x, "i"), jnp.sum(x)),
        "i",
        in_axes=(None, 0),
        out_axes=pmapx.AUTO,
    )
    there = compile_for(step, [np.ones(128, np.float32), np.ones((N, 128), np.float32)], "v5e:4x4")
    assert [info.shape for info in there.traced.out_info] == [(128,), (16,)]


def test_what_leaves_a_slice_is_in_the_report():
    mapped, args = pmapped()
    [audited] = pmapx.audit(mapped, *args, topology="2x v5e:4x4").functions

    between = [exchange for exchange in audited.exchanges if exchange.between]
    assert {(each.kind, each.along) for each in between} == {("all-reduce", "2 slices")}
    # Each of 16 chips sends its share to its twin, and gets the sum: as much as it reduced.
    assert audited.between_in_a_call == pytest.approx(GRADIENT_BYTES / 16, rel=0.1)  # Padded.
    assert audited.seconds_in_a_call > audited.between_in_a_call / (25e9 / 8)
    assert "PMX608" not in {remark.code for remark in audited.findings}  # XLA added nothing.


def test_data_parallel_over_slices_sends_a_share_of_the_gradients_over_dcn():
    f, arguments = pmapped()
    (found,) = pmapx.audit(f, *arguments, topology="2x v5e:4x4").functions

    # 16 chips of a slice reduce-scatter the gradients; each sends its 16th to its twin and back.
    assert found.between_in_a_call == pytest.approx(GRADIENT_BYTES / 16, rel=0.05)
    assert "PMX603" not in {remark.code for remark in found.findings}
    assert found.seconds_in_a_call > 50e-6  # DCN has a latency.
    assert found.capacity == 16 * 2**30


def test_a_program_that_does_not_fit_is_a_finding_and_a_point_of_the_table():
    f = pmapx.pmap(lambda w, x: (w + x.sum(), x), "i", in_axes=(None, 0), out_axes=(None, 0))
    w = jax.ShapeDtypeStruct((50_000, 50_000), np.float32)
    x = jax.ShapeDtypeStruct((N, 4), np.float32)

    report = pmapx.audit(f, w, x, topology="v5e:2x2", scaling="v5e:4,8")

    (remark,) = [remark for remark in report.findings if remark.code == "PMX612"]
    assert "exceeds available HBM (15.75G)" in remark.message
    assert "w float32[50000,50000] 9.31 GiB" in remark.message
    assert [point.fits for point in report.functions[0].scaling.points] == [False, False]
    assert "too much" in str(report)


def test_fsdp_by_jit_is_compiled_for_a_pod_with_the_same_parameters():
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
    w = jax.ShapeDtypeStruct((256, 512), np.float32, sharding=rows)
    x = jax.ShapeDtypeStruct((N * 8, 256), np.float32, sharding=rows)
    f = jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w))

    (found,) = pmapx.audit(f, w, x, topology="v5e:8x8").functions

    assert [leaf.shape for leaf in found.arguments] == [(256, 512), (512, 256)]
    assert found.arguments[0].bytes_a_device == 256 * 512 * 4 // 64


def test_a_shape_that_libtpu_does_not_know_is_refused_before_the_program_runs(tmp_path):
    (tmp_path / "train.py").write_text("print('ran')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "audit", "--topology", "v5e:3x5", "train.py"],
        env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1])},
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (2, "")
    assert "v5e:2x4" in done.stderr


def test_the_log_of_libtpu_is_kept_out(tmp_path):
    code = (
        "import jax, numpy as np\n"
        "n = jax.device_count()\n"
        "jax.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')(np.ones((n, 4)))\n"
    )
    (tmp_path / "train.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pmapx", "audit", "--quiet", "--topology", "2x v5e:4x4", "train.py"],
        env={**os.environ, "PYTHONPATH": str(Path(pmapx.__file__).parents[1]), "XLA_FLAGS": ""},
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0
    assert done.stderr.splitlines() == ["pmapx audit: compiling <lambda> for 2x v5e:4x4"]


@pytest.mark.parametrize("style", ["global", "stacked"])
def test_what_migrate_writes_is_auditable_for_chips(tmp_path, style):
    check(FAST, style, "v5e:4x4", tmp_path)


def test_with_its_state_sharded_a_step_holds_less_and_gathers_its_weights():
    mesh = Mesh(np.array(jax.devices()), ("i",))
    state = jax.device_put(STATE, NamedSharding(mesh, P()))
    batch = [np.ones((8 * N, width), np.float32) for width in (256, 128)]
    placed = [jax.device_put(x, NamedSharding(mesh, P("i"))) for x in batch]

    def jitted(state, images, labels):
        gradients = jax.grad(loss)(state["weights"], images, labels)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], gradients)
        return {**state, "weights": weights}

    report = pmapx.audit(
        jax.jit(jitted, donate_argnums=0), state, *placed, topology="v5e:4x4", what_if="fsdp"
    )

    found = report.functions[0].what_if
    assert found.before.arguments["state['weights']"] == GRADIENT_BYTES
    bias = WEIGHTS["bias"].nbytes  # Too small to be sharded.
    assert found.after.arguments["state['weights']"] == (GRADIENT_BYTES - bias) // 16 + bias
    assert found.after.memory < found.before.memory
    assert found.after.seconds > 0
    assert "all-gather" in found.after.collectives
