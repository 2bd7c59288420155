"""Audits of programs in the styles of large-scale training, here and for more devices."""

from collections import Counter

import jax
import pytest
from parallel_programs import CASES, WEIGHT_BYTES

import pmapx
from pmapx._src.audit.topology import devices as topology
from pmapx._src.audit.topology.compile_for import compile_for

pytestmark = pytest.mark.needs_devices(8)
makes_devices = pytest.mark.skipif(
    topology.fastpath.more_cpu_devices(1) is None, reason="public JAX makes its CPU devices once"
)


@pytest.mark.parametrize("name", [name for name in CASES if name != "fsdp by jit"])
def test_what_is_sent_equal_and_found_is_what_was_worked_out_by_hand(name):
    case = CASES[name]
    f, arguments = case.make()

    (found,) = pmapx.audit(f, *arguments).functions

    sent = Counter()
    for each in found.exchanges:
        sent[each.kind] += each.payload * each.times
    assert dict(sent) == case.sent
    assert {leaf.path for leaf in found.outputs if leaf.is_equal} == case.equal
    codes = {remark.code for remark in found.findings}
    assert case.codes <= codes
    assert not case.absent & codes


@makes_devices
@pytest.mark.parametrize("name", CASES)
def test_only_the_batch_grows_on_more_devices(name):
    case = CASES[name]
    f, arguments = case.make()

    there = compile_for(f, arguments, "cpu:16")

    grown = {line.partition(": ")[0]: line.rpartition("-> ")[2] for line in there.grown}
    assert grown == {path: str(shape) for path, shape in case.grows.items()}


def test_fsdp_by_jit_gathers_what_it_holds_in_shards():
    f, arguments = CASES["fsdp by jit"].make()

    (found,) = pmapx.audit(f, *arguments).functions

    held = sum(leaf.bytes_a_device for leaf in found.arguments if leaf.path.startswith("params"))
    assert held == WEIGHT_BYTES // jax.device_count()
    assert found.exchanges
    assert not any(remark.code == "PMX601" for remark in found.findings)
