"""Who is lost? Each process holds a socket open for the others to try when something fails.

A collective that loses a peer fails with an address, if it fails at all; JAX names the process only
once its heartbeats have stayed away for long. The kernel closes the socket of a process that ends,
however it ends, so that one look tells at once.

With process 0 goes the service that would name it, and JAX ends the others at once, below Python,
with a word on "the leader". So these stay connected to its socket, each with a thread that sleeps
until it is closed and then, if there still is time, names it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
from types import TracebackType
from typing import Any

import jax

from pmapx import _fastpath

_addresses: dict[int, tuple[str, int]] = {}
_held: list[socket.socket] = []
_watchers: list[socket.socket] = []
_named: set[int] = set()
_GOODBYE = b"."


def hold(coordinator: str, timeout: float) -> None:
    """Opens this process's lifeline, on the interface that leads to the coordinator."""
    if not _fastpath.can_coordinate() or _held:
        return
    listening = socket.socket()
    listening.bind((_address_towards(coordinator), 0))
    listening.listen()
    _held.append(listening)
    host, port = listening.getsockname()[:2]
    published = _fastpath.published("pmapx/lifeline", f"{host}:{port}", timeout)
    for process, text in published.items():
        peer, _, number = text.rpartition(":")
        _addresses[process] = (peer, int(number))
    if jax.process_index() == 0:
        threading.Thread(target=_let_watch, args=(listening,), daemon=True).start()
        atexit.register(_say_goodbye)
    else:
        threading.Thread(target=_watch_first, args=(_addresses[0],), daemon=True).start()
    previous = sys.excepthook

    def name_the_lost(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        previous(kind, error, trace)
        for process in lost():
            _name(process)

    sys.excepthook = name_the_lost


def lost(patience: float = 2.0) -> list[int]:
    """Returns the processes that have ended; () before ``initialize``."""
    here = jax.process_index()
    return [
        process
        for process, address in sorted(_addresses.items())
        if process != here and not _answers(address, patience)
    ]


def _name(process: int) -> None:
    if process not in _named:
        _named.add(process)
        # Past Python's buffers: JAX may be about to end the process.
        os.write(2, f"pmapx: process {process} was lost.\n".encode())


def _let_watch(listening: socket.socket) -> None:
    """Keeps the connections of those who watch this process."""
    with contextlib.suppress(OSError):
        while True:
            _watchers.append(listening.accept()[0])


def _say_goodbye() -> None:
    """Tells those who watch that this process ends as it should."""
    for watcher in _watchers:
        with contextlib.suppress(OSError):
            watcher.send(_GOODBYE)


def _watch_first(address: tuple[str, int]) -> None:
    """Names process 0 when it ends without a goodbye."""
    try:
        with socket.create_connection(address) as watched:
            if watched.recv(1) == _GOODBYE:
                return
    except OSError:
        pass  # Reset, or refused: gone already.
    _name(0)


def _answers(address: tuple[str, int], patience: float) -> bool:
    try:
        socket.create_connection(address, timeout=patience).close()
    except OSError:
        return False
    return True


def _address_towards(coordinator: str) -> str:
    """Returns this machine's address as the coordinator sees it; loopback when that is here."""
    host, _, port = coordinator.rpartition(":")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # Nothing is sent: this only chooses the interface.
        return str(probe.getsockname()[0])
    return "127.0.0.1"
