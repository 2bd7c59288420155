"""pmapx.audit of one function: arrays, collectives, memory, donations, history."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pmapx
from pmapx._src import fastpath
from pmapx._src.audit.findings import ranked
from pmapx._src.audit.report.audit_report import Memory, Remark
from pmapx._src.audit.topology.interconnect import Fabric, link_of

pytestmark = pytest.mark.needs_devices(8)
N = 8
ROWS = np.arange(N * 4, dtype=np.float32).reshape(N, 4)


def train_step(state, batch):
    grads = jax.grad(lambda w: jnp.mean((batch["x"] @ w) ** 2))(state["w"])
    grads = lax.pmean(grads, "i")
    mean = 0.9 * state["mean"] + 0.1 * batch["x"].mean(0)
    return {"w": state["w"] - grads, "mean": mean}, lax.pmean(jnp.sum(batch["x"]), "i")


def make_arguments():
    state = pmapx.replicate({"w": np.ones((4, 2), np.float32), "mean": np.ones(4, np.float32)})
    return state, {"x": np.arange(N * 12, dtype=np.float32).reshape(N, 3, 4)}


def shapes_of(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def audited(f, *args, **kwargs):
    (function,) = pmapx.audit(f, *args, **kwargs).functions
    return function


def by_path(leaves):
    return {leaf.path: leaf for leaf in leaves}


def codes(f, *args, **kwargs):
    return [remark.code for remark in pmapx.audit(f, *args, **kwargs).findings]


def mesh_of_all(*names):
    shape = (N,) if len(names) == 1 else (4, 2)
    return Mesh(np.array(jax.devices()[:N]).reshape(shape), names)


@pytest.fixture(params=["arrays", "shapes"])
def arguments(request):
    return make_arguments() if request.param == "arrays" else shapes_of(make_arguments())


def test_arguments_have_path_shape_spec_and_bytes(arguments):
    leaves = by_path(audited(pmapx.pmap(train_step, "i"), *arguments).arguments)

    assert list(leaves) == ["state['mean']", "state['w']", "batch['x']"]
    weights = leaves["state['w']"]
    assert (weights.type, weights.spec) == ("float32[8,4,2]", "P('i')")
    assert (weights.shard_shape, weights.bytes_a_device) == ((1, 4, 2), 32)
    assert weights.carried == "out[0]['w']"


def test_a_state_that_stays_equal_counts_as_copies(arguments):
    function = audited(pmapx.pmap(train_step, "i"), *arguments)

    before, after = by_path(function.arguments), by_path(function.outputs)
    assert before["state['w']"].stacked_copies == 7 * 32
    assert after["out[0]['w']"].is_stacked_copies
    assert after["out[1]"].is_equal
    assert before["batch['x']"].varies_over == ("i",)


def test_a_part_of_the_state_that_is_not_reduced_varies_since_the_batch(arguments):
    function = audited(pmapx.pmap(train_step, "i"), *arguments)

    mean = by_path(function.outputs)["out[0]['mean']"]
    assert (mean.varies_over, mean.since) == (("i",), "batch['x']")
    assert "PMX609" in [remark.code for remark in function.findings]


def test_shards_that_differ_are_not_counted_as_copies():
    state, batch = make_arguments()
    state["w"] = jnp.arange(N * 8, dtype=jnp.float32).reshape(N, 4, 2)

    leaves = by_path(audited(pmapx.pmap(train_step, "i"), state, batch).arguments)

    assert leaves["state['w']"].varies_over == ("i",)
    assert leaves["state['w']"].is_compared


def test_an_argument_of_all_devices_is_replicated_and_not_stacked():
    f = pmapx.pmap(lambda w, x: w * x, in_axes=(None, 0))

    leaf = audited(f, np.ones(3, np.float32), np.ones((N, 3), np.float32)).arguments[0]

    assert (leaf.spec, leaf.is_equal, leaf.stacked_copies) == ("P()", True, 0)


def test_a_value_that_starts_to_vary_has_its_line():
    def f(x):
        return lax.psum(x, "i") + lax.axis_index("i")

    (leaf,) = audited(pmapx.pmap(f, "i"), np.ones((N, 2), np.float32)).outputs

    line = f.__code__.co_firstlineno + 1
    assert leaf.since == f"`axis_index` at test_audit.py:{line}"


def test_collectives_have_kind_axis_bytes_times_and_line():
    def f(x):
        def body(carry, _):
            return carry + lax.psum(carry, "i"), None

        return lax.scan(body, x, None, length=5)[0]

    (exchange,) = audited(pmapx.pmap(f, "i"), np.ones((N, 6), np.float32)).exchanges

    assert (exchange.kind, exchange.axes, exchange.times) == ("all-reduce", ("i",), 5)
    assert (exchange.payload, exchange.sent_in_a_call) == (24, 5 * 42)
    assert (exchange.operation, exchange.is_written) == ("psum", True)
    line = f.__code__.co_firstlineno + 2
    assert exchange.place.endswith(f"test_audit.py:{line}")


def test_memory_and_reuse_are_those_of_the_compiler():
    f = pmapx.pmap(lambda x: (x + 1, x.sum()), donate_argnums=0)

    function = audited(f, np.ones((N, 100), np.float32))

    assert function.memory.arguments == function.memory.aliases == 400
    assert function.memory.outputs >= 404
    assert [(each.path, each.is_used) for each in function.donations] == [("x", True)]


@pytest.mark.parametrize(
    ("fun", "reason"),
    [
        (lambda x: x.sum(), r"no output has its type, float32\[8,4\]"),
        (lambda x: x.astype(jnp.bfloat16), "the output of its shape, out, is bfloat16"),
    ],
)
def test_an_unused_donation_is_reported_with_its_reason(fun, reason):
    report = pmapx.audit(pmapx.pmap(fun, donate_argnums=0), np.ones((N, 4), np.float32))

    (donation,) = report.functions[0].donations
    assert not donation.is_used
    assert "PMX607" in [remark.code for remark in report.findings]
    assert re.fullmatch(reason, donation.reason)


def test_the_history_is_what_was_called_and_the_audit_adds_nothing_to_it():
    f = pmapx.pmap(lambda x: x + 1)
    f(np.ones((N, 2), np.float32))
    f(np.ones((N, 3), np.float32))
    before = f.cache_info()

    history = audited(f, np.ones((N, 3), np.float32)).history

    assert f.cache_info() == before
    assert (history.calls, history.traces, history.compiles) == (2, 2, 2)
    assert history.reasons[1:] == ("argument 0 'x' was float32[8,2], is float32[8,3]",)


def test_a_transferred_input_is_reported_with_its_reason():
    f = pmapx.pmap(lambda x: x + 1)
    x = jax.device_put(np.ones((N, 2), np.float32), jax.devices()[1])

    (leaf,) = audited(f, x).arguments

    assert "committed to" in leaf.moved
    assert codes(f, np.ones((N, 2), np.float32)) == []
    assert codes(f, x) == ["PMX604"]


def test_a_jit_of_a_shard_map_is_audited_by_the_names_of_its_mesh():
    P = PartitionSpec
    mesh = mesh_of_all("data", "model")

    @jax.jit
    def f(w, x):
        body = lambda w, x: (lax.psum(x @ w, "model"), lax.pmean(x.sum(), ("data", "model")))
        specs = (P("model"), P("data", "model"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P("data"), P()))(w, x)

    w, x = np.ones((6, 4), np.float32), np.arange(48, dtype=np.float32).reshape(8, 6)
    function = audited(f, w, x)

    assert (function.kind, function.axis_sizes) == ("jit of shard_map", {"data": 4, "model": 2})
    assert [leaf.spec for leaf in function.arguments] == ["P('model')", "P('data', 'model')"]
    assert [leaf.spec for leaf in function.outputs] == ["P('data')", "P()"]
    assert function.outputs[0].varies_over == ("data",)
    assert function.outputs[1].is_equal
    assert {exchange.axes for exchange in function.exchanges} == {("model",), ("data", "model")}


def test_a_jit_takes_shapes_with_their_shardings_and_static_arguments():
    mesh = mesh_of_all("i")
    spec = NamedSharding(mesh, PartitionSpec("i"))

    def f(x, power):
        body = lambda x: lax.psum(x**power, "i")
        P = PartitionSpec
        return jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P())(x)

    x = jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=spec)
    function = audited(jax.jit(f, static_argnums=1), x, 2)

    assert [(leaf.path, leaf.spec) for leaf in function.arguments] == [("x", "P('i')")]


def test_todays_pmap_and_any_other_function_are_audited_too():
    f = lambda x: lax.psum(x, "i")
    rows = np.arange(N * 2, dtype=np.float32).reshape(N, 2)

    for mapped in (jax.pmap(f, "i"), lambda x: pmapx.pmap(f, "i")(x) * 2):
        (exchange,) = audited(mapped, rows).exchanges
        assert (exchange.kind, exchange.payload) == ("all-reduce", 8)


def test_pmap_under_install_is_audited_as_pmapx():
    with pmapx.install():
        assert audited(jax.pmap(lambda x: x), np.ones((N, 2))).kind == "pmapx.pmap"


def test_nested_maps_have_both_axes():
    inner = pmapx.pmap(lambda x: lax.psum(x, "j") + lax.psum(x, ("i", "j")), "j")
    f = pmapx.pmap(inner, "i")

    function = audited(f, np.arange(8, dtype=np.float32).reshape(4, 2))

    assert function.axis_sizes == {"i": 4, "j": 2}
    assert {exchange.axes for exchange in function.exchanges} == {("j",), ("i", "j")}


def test_more_elements_than_devices_are_audited():
    f = pmapx.pmap(lambda x: lax.psum(x, "i"), "i", oversubscribe=True)

    function = audited(f, np.ones((2 * N, 3), np.float32))

    assert function.arguments[0].shard_shape == (2, 3)
    assert [exchange.kind for exchange in function.exchanges] == ["all-reduce"]


def test_a_report_is_read_back_as_it_was_written(tmp_path):
    report = pmapx.audit(pmapx.pmap(train_step, "i"), *make_arguments())
    path = tmp_path / "audit.json"

    report.to_json(path)

    written = json.loads(path.read_text())
    assert written == report.to_dict()
    assert written["format"] == 1
    assert pmapx.AuditReport.from_dict(written) == report
    assert [entry.name for entry in tmp_path.iterdir()] == ["audit.json"]


def test_a_report_of_an_earlier_version_is_read():
    read = {"place": "train.py:20", "index": "0", "count": 3, "bytes": 84, "type": "float32[8]"}
    written = pmapx.AuditReport(()).to_dict()
    del written["shard_reads"]

    report = pmapx.AuditReport.from_dict({**written, "row_reads": [read]})

    assert [each.place for each in report.shard_reads] == ["train.py:20"]


def test_what_is_printed_has_every_part():
    text = str(pmapx.audit(pmapx.pmap(train_step, "i", donate_argnums=0), *make_arguments()))

    assert "train_step" in text.splitlines()[0]
    for part in ("state['w']", "equal shards: 224 B of copies", "varies since batch['x']"):
        assert part in text
    for part in ("all-reduce", "memory per device", "donated and reused", "PMX601", "no time is"):
        assert part in text


def test_a_large_tree_is_summarized_as_text_and_complete_as_data():
    tree = {f"w{k}": np.ones((N, k + 1), np.float32) for k in range(40)}

    report = pmapx.audit(pmapx.pmap(lambda tree: jax.tree.map(jnp.sin, tree)), tree)

    assert "28 more" in str(report)
    assert len(report.to_dict()["functions"][0]["arguments"]) == 40


needs_more_cpu_devices = pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)


@needs_more_cpu_devices
def test_devices_that_are_not_there_are_audited_with_the_axis_grown_to_them():
    f = pmapx.pmap(train_step, "i", donate_argnums=0)

    report = pmapx.audit(f, *shapes_of(make_arguments()), topology="cpu:16")

    (function,) = report.functions
    assert (report.topology, function.axis_sizes) == ("cpu:16", {"i": 16})
    leaves = by_path(function.arguments)
    assert leaves["state['w']"].type == "float32[16,4,2]"
    assert leaves["state['w']"].stacked_copies == 15 * 32
    assert [each.group_size for each in function.exchanges] == [16]


@needs_more_cpu_devices
def test_a_jit_of_a_shard_map_is_laid_on_other_devices_too():
    P = PartitionSpec
    mesh = mesh_of_all("i")
    body = lambda x: lax.psum(x, "i")
    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P()))

    function = audited(f, np.ones((8, 3), np.float32), topology="cpu:16")

    assert (function.axis_sizes, function.arguments[0].shape) == ({"i": 16}, (16, 3))
    assert [each.group_size for each in function.exchanges] == [16]


def test_the_links_of_devices_are_found_by_their_kind():
    names = {"TPU v4": "ICI", "TPU v5": "ICI", "TPU v6 lite": "ICI", "NVIDIA H200": "NVLink 4"}
    names |= {"NVIDIA A100-SXM4-40GB": "NVLink 3", "NVIDIA H100 80GB HBM3": "NVLink 4"}

    assert {kind: link_of(kind).name for kind in names} == names
    assert link_of("TPU v5 lite").bytes_a_second < link_of("TPU v5").bytes_a_second
    for unknown in ("cpu", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090", "TPU v99"):
        assert link_of(unknown) is None


@pytest.mark.parametrize(
    ("kind", "one_axis", "memory", "dcn"),
    [  # By the pages of the Cloud TPU documentation; the links of an axis send one way each.
        ("TPU v4", 2 * 50, 32, 50),
        ("TPU v5 lite", 400 / 4, 16, 6400 / 256),
        ("TPU v5", 1200 / 6, 95, 50),
        ("TPU v6 lite", 800 / 4, 32, 25600 / 256),
        ("TPU7x", 1200 / 6, 192 / 2, 100 / 2),  # Two devices a chip.
    ],
)
def test_figures_are_those_that_are_published(kind, one_axis, memory, dcn):
    link = link_of(kind)

    assert link.bytes_a_second == pytest.approx(one_axis * 1e9)
    assert link.memory == memory * 2**30
    assert link.dcn_bits_a_second == pytest.approx(dcn * 1e9)


def test_times_follow_the_model_of_rings():
    cube, pod = Fabric("TPU v4", 64, (4, 4, 4)), Fabric("TPU v5 lite", 256, (16, 16))
    gigabyte = 10**9

    assert cube.seconds("all-gather", gigabyte, 64) == pytest.approx(0.01 / 3 + 6e-6)
    assert cube.seconds("all-gather", gigabyte, 4) == pytest.approx(0.01 + 2e-6)
    assert pod.seconds("all-gather", gigabyte, 256) == pytest.approx(0.005 + 16e-6)
    assert Fabric("NVIDIA H200", 16).seconds("all-reduce", gigabyte, 16) is None
    assert Fabric("NVIDIA H200", 8).seconds("all-reduce", 450_000_000, 8) == pytest.approx(1e-3)
    assert Fabric("cpu", 8).seconds("all-reduce", gigabyte, 8) is None


@pytest.mark.parametrize(
    ("kind", "torus", "rings"),
    [
        ("TPU v5 lite", (8, 8), []),
        ("TPU v5 lite", (8, 16), [16]),
        ("TPU v6 lite", (16, 16), [16, 16]),
        ("TPU v4", (2, 2, 4), []),
        ("TPU v5", (4, 4, 8), [4, 4, 8]),
        ("TPU v5", (4, 4), []),  # 4x4x1 is no cube.
        ("TPU v5", (2, 2, 4), []),
        ("TPU7x", (4, 4, 4), [4, 4, 4]),
        ("TPU v3", (16, 32), [32]),
    ],
)
def test_wraparound_links_follow_the_rules_of_the_generation(kind, torus, rings):
    assert [n for n in torus if link_of(kind).has_wraparound(n, torus)] == rings


def test_without_wraparound_links_a_collective_takes_twice_as_long():
    sent, members = 10**9, 64

    line = Fabric("TPU v5 lite", 64, (8, 8)).seconds("all-gather", sent, members)
    half = Fabric("TPU v5 lite", 128, (8, 16)).seconds("all-gather", sent, 128)

    assert line == pytest.approx(sent / 100e9 + 14e-6)  # 2 axes at half of 100 GB/s.
    assert half == pytest.approx(sent / 150e9 + 15e-6)
    assert "no axis has wraparound" in " ".join(Fabric("TPU v5 lite", 64, (8, 8)).assumptions())


def test_the_network_between_slices_decides_where_it_is_slower():
    slices = Fabric("TPU v5 lite", 32, (4, 4), slice_of=(0,) * 16 + (1,) * 16)
    megabyte = 10**6

    # 15 of 16 MB stay in a slice; the network has 25 Gbit/s for each chip, and 50 us per message.
    within = slices.seconds("all-gather", 15 * megabyte, 16)
    assert slices.seconds("all-gather", 16 * megabyte, 32, megabyte, 2) == pytest.approx(3.7e-4)
    assert slices.seconds("all-gather", 15 * megabyte + 100, 32, 100, 2) == pytest.approx(within)
    assert slices.seconds("all-reduce", megabyte, 2, megabyte, 2) == pytest.approx(4.2e-4)
    assert "3.12 GB/s per device" in " ".join(slices.assumptions())


def test_without_a_figure_of_the_network_there_is_no_estimate_over_slices():
    slices = Fabric("TPU v3", 32, (4, 4), slice_of=(0,) * 16 + (1,) * 16)

    assert slices.seconds("all-reduce", 10**6, 16) is not None
    assert slices.seconds("all-reduce", 10**6, 32, 10**5, 2) is None
    assert "no estimate" in " ".join(slices.assumptions())


def test_assumptions_name_the_figure_and_where_it_is_published():
    text = " ".join(Fabric("TPU v5 lite", 256, (16, 16)).assumptions())

    assert "https://cloud.google.com/tpu/docs/v5e" in text
    assert "16 x 16" in text


def test_a_pmapped_call_does_not_import_the_audit(run_python):
    printed = run_python(
        "import sys, numpy as np, jax, pmapx\n"
        "n = jax.device_count()\n"
        "pmapx.pmap(lambda x: jax.lax.psum(x, 'i'), 'i', donate_argnums=0)(np.ones((n, 2)))\n"
        "print(*sorted(m for m in sys.modules if m.startswith('pmapx._src.audit')))\n"
        "print(callable(pmapx.audit), pmapx.audit.__name__)\n"
    )
    imported, function = printed.splitlines()
    assert imported == ""
    assert function == "True audit"


def test_a_result_with_nothing_in_it_is_audited():
    f = pmapx.pmap(lambda x: {"x": 2 * x, "nothing": None, "empty": ()}, "i")

    [leaf] = pmapx.audit(f, np.ones((N, 2), np.float32)).functions[0].outputs
    assert leaf.path == "out['x']"


def test_an_audit_leaves_nothing_behind_in_the_program(run_python):
    printed = run_python(
        "import jax, numpy as np, pmapx\n"
        "from pmapx._src.map.pmap import PmapImpl\n"
        "x = np.ones((jax.device_count(), 2))\n"
        "f = pmapx.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')\n"
        "y = f(x)\n"
        "parts = lambda: (jax.jit, type(y).__getitem__, PmapImpl.as_function, f.__call__,\n"
        "                 f._pmapx, f.cache_info())\n"
        "before = parts()\n"
        "pmapx.audit(f, x); pmapx.audit(f, x, topology='cpu:1', scaling='cpu:1')\n"
        "f(x)\n"
        "after = parts()\n"
        "print(before[:-1] == after[:-1], after[-1].compiles, after[-1].traces)\n"
    )
    assert printed.split() == ["True", "1", "1"]


def test_an_argument_that_is_not_used_is_not_held():
    f = pmapx.pmap(lambda x, unused: 2 * x)
    (found,) = pmapx.audit(f, ROWS, {"big": np.ones((N, 64, 64), np.float32)}).functions

    used, unused = found.arguments
    assert (used.is_unused, unused.is_unused, unused.bytes_a_device) == (False, True, 0)
    assert found.memory.arguments == used.bytes_a_device
    assert "not used" in str(pmapx.AuditReport((found,)))


def test_a_tree_with_none_has_no_unused_arguments():
    f = pmapx.pmap(lambda tree: tree["x"] + 1)
    (found,) = pmapx.audit(f, {"none": None, "x": ROWS}).functions

    assert [leaf.is_unused for leaf in found.arguments] == [False]


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (Memory(100, 60, 10, 60, peak=100), "10 B less than the sum"),
        (Memory(100, 10**6, 0, 0, peak=2 * 10**6 + 100), "outputs that reuse no argument"),
        (Memory(100, 0, 0, 0, peak=10**6), "alignment"),
        (Memory(100, 0, 0, 0, peak=100), "None"),
    ],
)
def test_the_difference_between_the_peak_and_the_sum_is_explained(memory, words):
    assert words in str(memory.difference())


def sync(x, state):
    mean = x.mean(0)
    return {"mean": 0.9 * state["mean"] + 0.1 * mean, "w": state["w"] + lax.pmean(mean, "i")}


@pytest.mark.parametrize(
    "batch",
    [
        np.zeros((N, 4, 3), np.float32),
        np.full((N, 4, 3), 7, np.int32).astype(np.float32),
        np.broadcast_to(np.arange(12, dtype=np.float32).reshape(4, 3), (N, 4, 3)),
        jax.ShapeDtypeStruct((N, 4, 3), np.float32),
    ],
    ids=["zeros", "constant", "broadcast", "shape"],
)
def test_data_made_up_for_an_audit_proves_nothing(batch):
    state = pmapx.replicate({"mean": np.zeros(3, np.float32), "w": np.zeros(3, np.float32)})

    report = pmapx.audit(pmapx.pmap(sync, "i"), batch, state)

    codes = {remark.code: remark.message for remark in report.findings}
    assert "state['mean'] differs" in codes["PMX609"]
    assert codes["PMX601"].startswith("state['w']: one shard")
    assert not report.functions[0].arguments[0].is_equal


def test_zeros_that_devices_update_in_their_own_way_are_not_equal_shards():
    f = pmapx.pmap(lambda m, x: 0.9 * m + x, "i")
    (found,) = pmapx.audit(f, np.zeros((N, 4), np.float32), ROWS).functions

    momentum, _ = found.arguments
    assert not momentum.is_equal
    assert momentum.stacked_copies == 0
    assert "unknown: its values are constant" in str(pmapx.AuditReport((found,)))
    assert not found.findings


def test_an_argument_that_is_only_read_proves_nothing_by_being_equal():
    equal = np.tile(np.arange(4, dtype=np.float32), (N, 1))
    (found,) = pmapx.audit(
        pmapx.pmap(lambda w, m, x: w * m + lax.pmean(x, "i"), "i"), equal, equal, ROWS
    ).functions

    weights, mask, _ = found.arguments
    assert (weights.is_equal, mask.is_equal, mask.is_only_read) == (True, False, True)
    assert [leaf.since for leaf in found.outputs] == ["m"]
    assert "unknown: equal in this call, and only read" in str(pmapx.AuditReport((found,)))
    assert "PMX601" not in {remark.code for remark in found.findings}


def test_a_replicated_argument_that_is_only_read_is_equal():
    f = pmapx.pmap(lambda w, x: w * lax.pmean(x, "i"), "i", in_axes=(None, 0))
    (found,) = pmapx.audit(f, np.arange(4, dtype=np.float32), ROWS).functions

    assert found.arguments[0].is_equal
    assert found.outputs[0].is_equal


def test_stacked_state_costs_the_host_and_not_the_device():
    state = pmapx.replicate(np.arange(4, dtype=np.float32))
    report = pmapx.audit(pmapx.pmap(lambda w, x: w - lax.pmean(x, "i"), "i"), state, ROWS)

    (remark,) = report.findings
    assert "a checkpoint and the host hold 128 B instead of 16 B" in remark.message


def test_findings_are_grouped_and_the_largest_come_first():
    def remark(code, size, message, function="f"):
        return Remark(code, "name", message, "do it", function, None, size)

    several = [remark("PMX604", size, f"x{size}") for size in (1, 2, 3, 4, 5)]
    found = ranked([*several, remark("PMX601", 100, "large"), remark("PMX605", 0, "none")])

    assert [each.code for each in found] == ["PMX601", *["PMX604"] * 5, "PMX605"]
    assert [each.bytes for each in found[1:6]] == [5, 4, 3, 2, 1]
    text = str(pmapx.AuditReport((), findings=found))
    assert "PMX604 f: x5\n         x4\n         x3\n         and 2 more\n" in text
