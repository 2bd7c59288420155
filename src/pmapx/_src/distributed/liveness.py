"""Detection of lost processes: each holds a connection to process 0, its lifeline.

A collective that loses a peer fails with an address, if it fails at all, and JAX names the process
only after its heartbeat timeout. The kernel closes the connection when a process ends: if it breaks
without a goodbye, the process is lost. A connection that was never established means nothing.

Process 0 publishes which processes it lost. If process 0 itself is lost, so is the coordination
service; the other processes then report it when their connection breaks.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from pmapx._src import fastpath
from pmapx._src.distributed import addresses, failure_record, key_value_store

logger = logging.getLogger("pmapx")

ADDRESS = "pmapx/lifeline"
LOST = "pmapx/lost"
_GOODBYE = b"."
_CONNECT_SECONDS = 10.0

_held: list[socket.socket] = []
_keepers: list[Keeper] = []
_lost: set[int] = set()
_named: set[int] = set()
_has_left = threading.Event()
_has_address = threading.Event()


def hold(coordinator: str, timeout: float) -> None:
    """Opens this process's lifeline in the background, if the key-value store is available."""
    joined = fastpath.joined_as() if key_value_store.is_available() else None
    meeting_point = addresses.split(coordinator)
    if joined is None or joined[1] == 1 or meeting_point is None or _keepers or _held:
        return
    here, count = joined
    for state in (_has_left, _has_address):
        state.clear()
    _lost.clear()
    _named.clear()
    atexit.register(say_goodbye)
    fastpath.after_shutdown(_release)
    if here == 0:
        _has_address.set()
        try:
            listening = listen(*meeting_point, count)
        except OSError as error:
            logger.warning("pmapx: process 0 cannot open a socket for lifelines (%s).", error)
            return
        _keepers.append(Keeper(listening, _publish_lost))
        key_value_store.put(ADDRESS, addresses.join(*listening.getsockname()[:2]), overwrite=True)
    else:
        threading.Thread(target=_watch_first, args=(here, timeout), daemon=True).start()


def lost() -> list[int]:
    published = None
    if key_value_store.is_available() and 0 not in _lost:
        published = key_value_store.attempted(lambda: key_value_store.entries(LOST))
    return sorted({*_lost, *map(int, published or ())})


def was_lost(process: int) -> bool:
    """Whether this process itself detected the loss of another."""
    return process in _lost


def name(process: int) -> None:
    if process not in _named:
        _named.add(process)
        failure_record.say(f"pmapx: process {process} was lost.")


def say_goodbye() -> None:
    """Tells the peers that the connections of this process close because it ends."""
    _has_left.set()
    for keeper in _keepers:
        keeper.say_goodbye()
    for connection in _held:
        with contextlib.suppress(OSError):
            connection.send(_GOODBYE)


def _release() -> None:
    """Drops all connections after JAX's shutdown."""
    say_goodbye()
    # A thread that is in C++ while Python finalizes would crash the process.
    _has_address.wait(2 * key_value_store.PATIENCE)
    _held.clear()
    _keepers.clear()


def listen(host: str, port: int, count: int) -> socket.socket:
    """Opens a socket for ``count`` connections, on the interface that routes to ``host``."""
    address = addresses.local_address_towards(host, port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=count)


class Keeper:
    """Process 0's end of all lifelines, served by one thread."""

    def __init__(self, listening: socket.socket, on_lost: Callable[[int], None]) -> None:
        """Starts the thread, which calls ``on_lost`` with the index of each lost process."""
        self._listening = listening
        self._on_lost = on_lost
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._processes: dict[socket.socket, int | None] = {}
        threading.Thread(target=self._keep, daemon=True).start()

    def say_goodbye(self) -> None:
        for connection in list(self._processes):
            with contextlib.suppress(OSError):
                connection.send(_GOODBYE)

    def _keep(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    with contextlib.suppress(OSError):
                        connection, _ = self._listening.accept()
                        connection.setblocking(False)
                        self._processes[connection] = None
                        self._selector.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _read(self, connection: socket.socket) -> None:
        """Reads the index of a process, which it sends first, its goodbye, or the end."""
        try:
            received = connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        index = received.partition(b"\n")[0]
        if index.isdigit():
            self._processes[connection] = int(index)
        if received and not received.endswith(_GOODBYE):
            return
        process = self._processes.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        if not received and process is not None:
            self._on_lost(process)


def _publish_lost(process: int) -> None:
    _lost.add(process)
    name(process)
    key_value_store.attempted(lambda: key_value_store.put(f"{LOST}/{process}", "", overwrite=True))


def _watch_first(here: int, timeout: float) -> None:
    """Holds this process's connection to process 0, and reports the loss of process 0."""
    try:
        address = _address_of_first(timeout)
    finally:
        _has_address.set()
    meeting_point = None if address is None else addresses.split(address)
    if meeting_point is None:
        return
    try:
        connection = socket.create_connection(meeting_point, _CONNECT_SECONDS)
    except OSError as error:
        logger.warning(
            "pmapx: process %d cannot connect to the lifeline of process 0 at %s (%s). It "
            "continues without it: lost processes are detected only by JAX's heartbeat timeout.",
            *(here, address, error),
        )
        return
    if not is_lost_in_the_end(connection, here):
        return
    _lost.add(0)
    name(0)


def _address_of_first(timeout: float) -> str | None:
    """Returns the address of process 0's lifelines; None if not published within ``timeout``."""
    deadline = time.monotonic() + timeout
    try:
        while not _has_left.is_set() and time.monotonic() < deadline:
            # Short waits: a process that ends waits for this thread.
            address = key_value_store.wait_for(ADDRESS, 0.5)
            if address is not None:
                return address
    except key_value_store.UnreachableError:
        pass
    return None


def is_lost_in_the_end(connection: socket.socket, here: int) -> bool:
    """Waits until a connection to process 0 ends; returns whether process 0 was lost."""
    connection.settimeout(None)
    _held.append(connection)
    try:
        connection.sendall(b"%d\n" % here)
        received = connection.recv(1)
    except OSError:
        received = b""  # Established, then reset.
    return received != _GOODBYE and not _has_left.is_set()
