"""A broken connection means a lost process, and one that was never made means nothing (E8)."""

import contextlib
import logging
import queue
import socket
import time

import pytest

from pmapx._src import fastpath
from pmapx._src.distributed import addresses, key_value_store, liveness

LOOPBACKS = ["127.0.0.1", "::1"]


@pytest.fixture(params=LOOPBACKS)
def keeper(request):
    """Process 0's end of the lifelines, its address, and the numbers of those it lost."""
    try:
        listening = liveness.listen(request.param, 1, 256)
    except OSError:
        pytest.skip(f"this machine has no {request.param}")
    lost = queue.SimpleQueue()
    return liveness.Keeper(listening, lost.put), listening.getsockname()[:2], lost


def connected(address, process):
    connection = socket.create_connection(address, 10)
    connection.sendall(b"%d\n" % process)
    return connection


@pytest.mark.behaviour("E8")
def test_lost_ones_of_256_processes_are_known_at_once_and_others_may_leave(keeper):
    _, address, lost = keeper
    with contextlib.ExitStack() as kept:
        peers = {process: connected(address, process) for process in range(1, 256)}
        for process in range(5, 256):
            kept.enter_context(peers[process])
        peers[4].sendall(b".")  # Ends as it should.
        for process in (4, 1, 2, 3):
            peers[process].close()

        assert sorted(lost.get(timeout=60) for _ in range(3)) == [1, 2, 3]
        assert lost.empty()


@pytest.mark.behaviour("E8")
def test_process_0_that_says_goodbye_is_not_lost(keeper):
    made, address, _ = keeper
    with socket.create_connection(address, 10) as connection:
        while not made._processes:
            time.sleep(0.01)
        made.say_goodbye()

        assert not liveness.is_lost_in_the_end(connection, 1)


@pytest.mark.behaviour("E8")
def test_process_0_is_lost_when_its_connection_breaks_without_a_goodbye():
    ours, of_process_0 = socket.socketpair()
    of_process_0.close()

    with ours:
        assert liveness.is_lost_in_the_end(ours, 1)


@pytest.mark.behaviour("E8")
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_lifeline_behind_a_firewall_is_reported_once_and_nobody_is_lost(
    monkeypatch, caplog, is_dropped
):
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # Nobody listens there.
        where = addresses.join(*refusing.getsockname())
        monkeypatch.setattr(key_value_store, "wait_for", lambda key, timeout: where)
        if is_dropped:

            def time_out(*args):
                raise TimeoutError("timed out")

            monkeypatch.setattr(socket, "create_connection", time_out)
        monkeypatch.setattr(liveness, "name", lambda process: pytest.fail(f"{process} is lost"))
        with caplog.at_level(logging.WARNING, "pmapx"):
            liveness._watch_first(1, 1.0)

    (record,) = caplog.records
    assert (
        "process 1 cannot connect to the lifeline of process 0 at 127.0.0.1:" in record.getMessage()
    )
    assert "lost processes are detected only by JAX's heartbeat" in record.getMessage()
    assert liveness.lost() == []


class LateStore:
    """A coordination service on which an address is published while the third call waits."""

    def __init__(self):
        self.calls = 0

    def blocking_key_value_get(self, key, timeout_in_ms):
        self.calls += 1
        if self.calls < 3:
            raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return "127.0.0.1:9"


@pytest.mark.behaviour("E8")
def test_a_process_learns_the_address_of_the_lifelines_when_it_is_published(monkeypatch):
    # By polling, it had none for half a second: killed in that time, it was not called lost.
    store = LateStore()
    monkeypatch.setattr(fastpath, "coordination_client", lambda: store)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    monkeypatch.setattr(liveness._has_left, "wait", lambda timeout: pytest.fail("it sleeps"))

    assert liveness._address_of_first(60) == "127.0.0.1:9"
    assert store.calls == 3


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("node-3.cluster:1234", ("node-3.cluster", 1234)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("::1", None),
        ("fe80::1:80", None),
        ("node", None),
        ("node:", None),
        (":80", None),
        ("node:http", None),
    ],
)
def test_addresses_are_split_with_and_without_brackets(text, address):
    assert addresses.split(text) == address
    if address is not None:
        assert addresses.join(*address) == text
