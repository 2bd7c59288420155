"""A pod by its name: which names there are, and what a wrong one is answered with."""

import importlib.metadata
import os
import subprocess
import sys

import jax
import pytest

from pmapx._src import errors
from pmapx._src.audit.topology import devices as topology
from pmapx._src.audit.topology import names

HAS_LIBTPU = topology.importlib.util.find_spec("libtpu") is not None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("v5e:16x16", names.Topology("v5e:16x16", "v5e", (16, 16))),
        ("V5P:4x4x8", names.Topology("v5p:4x4x8", "v5p", (4, 4, 8))),
        ("2x v4:4x4x4", names.Topology("2x v4:4x4x4", "v4", (4, 4, 4), slices=2)),
        ("2 x v6e:8x8", names.Topology("2x v6e:8x8", "v6e", (8, 8), slices=2)),
        ("cpu:64", names.Topology("cpu:64", "cpu", (64,))),
        ("gpu:2x8", names.Topology("gpu:2x8", "gpu", (2, 8))),
    ],
)
def test_a_name_is_read(written, expected):
    assert names.parse(written) == expected


@pytest.mark.parametrize(
    ("written", "problem", "valid"),
    [
        ("v5e", "family:shape", "v5e:16x16"),
        ("v9:2x2", "v9 is not a known device family", "v5p:8x8x16"),
        ("v5e:4x4x4", "2 dimensions", "v5e:8x8"),
        ("v4:8x8", "3 dimensions", "v4:8x8x8"),
        ("v5e:32x32", "at most 256 chips", "v5e:16x16"),
        ("v5e:0x4", "it has no devices", "v5e:2x4"),
        ("cpu:2x2", "have no shape", "cpu:64"),
        ("gpu:2x2x2", "GPUs per host", "cpu:64"),
        (64, "family:shape", "cpu:64"),
    ],
)
def test_the_error_for_an_unknown_name_lists_valid_ones(written, problem, valid):
    with pytest.raises(errors.UnknownTopology) as raised:
        topology.devices_of(written)
    assert problem in str(raised.value)
    assert valid in str(raised.value)


@pytest.mark.parametrize("family", names.FAMILIES)
def test_every_valid_shape_is_read_and_found_by_its_size(family):
    per_chip = 2 if family == "tpu7x" else 1
    for shape in names.FAMILIES[family].shapes:
        read = names.parse(f"{family}:{shape}")
        count = topology.math.prod(read.shape) * per_chip
        found = names.parse(names.topology_of(count, family))
        assert topology.math.prod(found.shape) * per_chip == count


def test_a_size_that_no_slice_has_is_refused():
    with pytest.raises(errors.UnknownTopology, match="no slice of v5e has 24"):
        names.topology_of(24, "v5e")


def test_names_complete_in_the_shell_without_jax(run_python):
    printed = run_python(
        "import sys\n"
        "from pmapx._src.audit.topology.names import completions\n"
        "print(*completions('v5p:16'), 'jax' in sys.modules)\n"
    )
    assert printed.split() == ["v5p:16x16x16", "v5p:16x16x24", "False"]


makes_devices = pytest.mark.skipif(
    topology.fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)


@makes_devices
def test_virtual_cpu_devices_come_in_any_number():
    few, many = topology.devices_of("cpu:1"), topology.devices_of("cpu:100")
    assert few == tuple(jax.devices("cpu")[:1])
    assert len(many) == 100
    assert {device.platform for device in many} == {"cpu"}


def test_without_a_way_to_more_cpu_devices_the_flag_is_named(monkeypatch):
    monkeypatch.setattr(topology.fastpath, "more_cpu_devices", lambda count: None)
    with pytest.raises(errors.TooFewCpuDevices, match="device_count=1000"):
        topology._cpu_devices(1000)


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_libtpu_the_extra_is_named():
    with pytest.raises(errors.NoCompiler, match=r"pip install 'pmapx\[tpu\]'"):
        topology.devices_of("v5e:16x16")


@pytest.mark.skipif(
    any("cuda" in plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")),
    reason="the plugin is installed",
)
def test_without_the_cuda_plugin_it_is_named():
    with pytest.raises((errors.NoCompiler, errors.NoTopologyFromCompiler), match="gpu:8"):
        topology.devices_of("gpu:8")


def test_the_environment_is_as_before():
    before = dict(os.environ)
    with topology._alone_on_this_machine():
        assert os.environ.get("TPU_SKIP_MDS_QUERY") == before.get("TPU_SKIP_MDS_QUERY")
    assert dict(os.environ) == before


needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="make test-tpu has libtpu")


@needs_libtpu
@pytest.mark.parametrize("family", names.FAMILIES)
def test_libtpu_knows_every_valid_shape(family):
    per_chip = 2 if family == "tpu7x" else 1
    for shape in names.FAMILIES[family].shapes:
        devices = topology.devices_of(f"{family}:{shape}")
        assert len(devices) == per_chip * topology.math.prod(map(int, shape.split("x"))), shape
        assert {device.platform for device in devices} == {"tpu"}


@needs_libtpu
def test_devices_of_several_slices_have_different_slice_indices():
    devices = topology.devices_of("2x v5e:4x4")
    assert [device.slice_index for device in devices] == [0] * 16 + [1] * 16


@needs_libtpu
def test_the_error_for_a_shape_that_libtpu_rejects_lists_valid_ones():
    with pytest.raises(errors.UnknownTopology, match="libtpu reports") as raised:
        topology.devices_of("v5e:3x5")
    assert "v5e:4x4" in str(raised.value)


@needs_libtpu
def test_two_processes_describe_a_topology_at_once_and_quietly():
    code = (
        "from pmapx._src.audit.topology import devices; print(len(devices.devices_of('v5e:8x8')))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120) for process in running] == [("64\n", "")] * 2
