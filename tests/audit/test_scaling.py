"""What grows with the number of devices, and that what should not does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from pmapx._src import fastpath
from pmapx._src.audit.report.scaling_table import Growth, Point, Scaling, growth_of
from pmapx._src.audit.topology.compile_for import scaling
from pmapx._src.audit.topology.names import several

makes_devices = pytest.mark.skipif(
    fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)
N = jax.device_count()
X = np.ones((N, 64, 32), np.float32)


def averaged(w, x):
    return w - lax.pmean(jax.grad(lambda w: jnp.sin(x @ w).mean())(w), "i")


def gathered(x):
    return lax.all_gather(x, "i").mean(0)


@makes_devices
def test_a_step_that_averages_its_gradients_does_not_grow():
    step = pmapx.pmap(averaged, "i", in_axes=(None, 0), out_axes=None, donate_argnums=0)
    said = []
    found = scaling(
        step, [np.ones((32, 16), np.float32), X], ["cpu:16", "cpu:4"], progress=said.append
    )
    assert said == ["compiling for cpu:16", "compiling for cpu:4"]
    assert [point.devices for point in found.points] == [4, 16]
    assert [point.collectives for point in found.points] == [1, 1]
    assert [point.sent for point in found.points] == [2048 * 2 * 3 // 4, 2048 * 2 * 15 // 16]
    assert {sum(point.payloads.values()) for point in found.points} == {2048}
    assert found.growing == ()
    assert "nothing that a device sends or holds grows" in str(found)


@makes_devices
def test_a_gather_is_named_with_its_line():
    found = scaling(pmapx.pmap(gathered, "i"), [X], ["cpu:4", "cpu:16"])
    [gather] = [growth for growth in found.growing if growth.what.startswith("all-gather")]
    assert "test_scaling.py:" in gather.what
    assert (gather.few, gather.many) == (4 * 64 * 32 * 4, 16 * 64 * 32 * 4)
    assert "temporaries" in [growth.what for growth in found.growing]
    assert "32.0 KiB -> 128 KiB per device" in str(found)


def point(devices, **changed):
    cost = {"collectives": 1, "sent": 8, "payloads": {"all-reduce": 8}, "arguments": 4,
            "outputs": 4, "temporaries": 1000, "compile_seconds": 1.0, **changed}  # fmt: skip
    return Point(topology=f"cpu:{devices}", devices=devices, **cost)


def test_growth_is_measured_from_the_fewest_to_the_most_devices():
    points = [point(8), point(64, temporaries=9), point(512, collectives=3, temporaries=1100)]
    assert growth_of(points) == [Growth("number of collectives", 1, 3, unit="")]
    assert growth_of([point(8), point(512, payloads={"all-reduce": 8, "all-gather": 2**20})]) == [
        Growth("all-gather", 0, 2**20)
    ]


def test_several_slices_are_not_compared_with_one():
    apart = {"slices": 2, "collectives": 3, "temporaries": 4000, "payloads": {"all-gather": 2**20}}
    assert growth_of([point(8), point(256), point(512, **apart)]) == []
    more = apart | {"slices": 4, "collectives": 5}
    assert growth_of([point(8), point(512, **apart), point(1024, **more)]) == [
        Growth("number of collectives", 3, 5, unit="")
    ]
    assert growth_of([point(8), point(512, outputs=2**20, **apart)]) == [
        Growth("outputs", 4, 2**20)
    ]


def test_one_device_is_not_compared_with_many():
    assert growth_of([point(1, collectives=0, payloads={}), point(8)]) == []


def test_the_table_has_one_line_per_number_of_devices():
    table = str(Scaling("step", (point(8), point(4096)), (Growth("outputs", 4, 2048),)))
    assert [line.split()[0] for line in table.splitlines()[2:4]] == ["8", "4,096"]
    assert "outputs: 4 B -> 2.00 KiB per device" in table


def test_it_is_plain_numbers_too():
    assert Scaling("step", (point(8),), ()).to_dict()["points"][0]["temporaries"] == 1000


@makes_devices
def test_an_audit_shows_the_table_and_what_grows():
    report = pmapx.audit(pmapx.pmap(gathered, "i"), X, scaling="cpu:4,16")
    [audited] = report.functions

    assert [each.devices for each in audited.scaling.points] == [4, 16]
    shown = str(report)
    assert "on more devices, per device:" in shown
    assert "grows with the number of devices:" in shown
    [remark] = [remark for remark in report.findings if remark.code == "PMX611"]
    assert "grows from 4 to 16 devices: all-gather at test_scaling.py:" in remark.message
    assert pmapx.AuditReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("v5e:8,64", ["v5e:2x4", "v5e:8x8"]),
        ("v5e:16x16, 1024", ["v5e:16x16", "4x v5e:16x16"]),
        ("cpu:8,cpu:8,16", ["cpu:8", "cpu:16"]),
        (("4x v5e:16x16", "v5p:64"), ["4x v5e:16x16", "v5p:4x4x4"]),
        ("", []),
    ],
)
def test_topologies_are_named_by_shape_or_number(asked, names):
    assert several(asked) == names


@pytest.mark.parametrize("asked", ["8,64", "v5e:9", "v9:8", "v5e"])
def test_an_unknown_topology_is_an_error_that_lists_the_known_ones(asked):
    with pytest.raises(ValueError, match="v5e:") as told:
        several(asked)
    assert "PMX" in str(told.value)
