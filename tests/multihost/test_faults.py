"""Faults have names, and an end (E8): real processes, one of which goes wrong."""

import re
import socket

import pytest
from started import HERE, finish, start

WORKER = "fault_worker.py"


def outcome(tmp_path, fault, processes=2, devices=1, timeout=120, **more):
    """Statuses and outputs of a launch in which `fault` happens; None is for one that hangs."""
    started = start([str(HERE / WORKER), fault], processes, devices, tmp_path, **more)
    statuses = finish(started, timeout)
    outputs = [(tmp_path / f"output.{k}").read_text(errors="replace") for k in range(processes)]
    return statuses, outputs


@pytest.mark.slow
@pytest.mark.behaviour("E8")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("fault", ["killed_before", "killed_during", "killed_after"])
def test_survivors_of_a_killed_process_end_with_an_error_that_names_it(fault, processes, tmp_path):
    statuses, outputs = outcome(tmp_path, fault, processes)

    lost = processes - 1
    assert statuses[lost] == -9
    for process in range(lost):
        assert statuses[process] not in (0, None), outputs[process]
        text = outputs[process]
        named = rf"(?im)\b(task|process)[: ]{lost}\b|^{lost}$"  # By pmapx, or by JAX.
        assert re.search(named, text), text


@pytest.mark.slow
@pytest.mark.behaviour("E8")
@pytest.mark.parametrize("fault", ["killed_before", "killed_during", "killed_after"])
def test_survivors_of_process_0_name_it_although_the_service_goes_with_it(fault, tmp_path):
    statuses, outputs = outcome(tmp_path, fault, processes=3, PMAPX_TEST_LOST="0")

    assert statuses[0] == -9
    # JAX ends a survivor at once, and says that it may be the leader; we say so if we are faster.
    named = r"pmapx: process 0 was lost\.|the leader \(usually slice 0 task 0\)"
    for process in (1, 2):
        assert statuses[process] not in (0, None), outputs[process]
        assert re.search(named, outputs[process]), outputs[process]


def test_a_process_0_that_ends_as_it_should_is_not_called_lost(tmp_path):
    statuses, outputs = outcome(tmp_path, "ends", PMAPX_TEST_LOST="0")

    assert statuses == [0, 0], outputs
    assert "lost" not in outputs[1]


@pytest.mark.slow
def test_a_process_that_never_joins_is_waited_for_so_long(tmp_path):
    statuses, outputs = outcome(tmp_path, "never_joins")

    assert statuses[0] not in (0, None), outputs[0]


def test_a_wrong_coordinator_address_is_an_error_that_shows_it(tmp_path):
    statuses, outputs = outcome(tmp_path, "wrong_address")

    assert statuses[1] == 1, outputs[1]
    assert "PMX414" in outputs[1]
    assert "process 1 cannot connect to the coordinator address '127.0.0.1:9'" in outputs[1]
    assert statuses[0] not in (0, None), outputs[0]


def test_a_busy_coordinator_address_is_an_error_that_shows_it(tmp_path):
    statuses, outputs = outcome(tmp_path, "busy_address")

    assert statuses[0] == 1, outputs[0]
    assert "PMX414" in outputs[0]
    assert "process 0 cannot listen on the coordinator address" in outputs[0]


def test_processes_with_unequal_numbers_of_devices(tmp_path):
    statuses, outputs = outcome(tmp_path, "unequal_devices", processes=3, devices=[3, 2, 1])

    assert statuses == [0, 0, 0], outputs
    assert "rows [0, 1, 2]" in outputs[0]
    assert "rows [3, 4]" in outputs[1]
    assert "refused PMX401" in outputs[0]
    assert "refused PMX402" in outputs[2]  # It has none of the devices of that map.


def has_ipv6_loopback():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no ::1")
def test_a_coordinator_and_lifelines_at_an_ipv6_address(tmp_path):
    statuses, outputs = outcome(tmp_path, "joins_over_ipv6")

    assert statuses == [0, 0], outputs
    assert all("lifeline [::1]:" in text for text in outputs)


@pytest.mark.slow
@pytest.mark.behaviour("E5")
def test_a_donated_argument_that_must_move_is_never_there_twice(tmp_path):
    statuses, outputs = outcome(tmp_path, "donated_memory", devices=2)

    assert statuses == [0, 0], outputs


@pytest.mark.slow
def test_thousands_of_steps_in_four_processes_hold_memory_and_replicas(tmp_path):
    statuses, outputs = outcome(tmp_path, "soak", processes=4, timeout=240)

    assert statuses == [0] * 4, outputs
    finals = {line.split()[1] for text in outputs for line in text.splitlines()
              if line.startswith("final")}  # fmt: skip
    assert finals == {str(3000 * 64 * 1.5)}
