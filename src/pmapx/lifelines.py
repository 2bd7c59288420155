"""Who is lost? Each process holds a socket open for the others to try when something fails.

A collective that loses a peer fails with an address, if it fails at all; JAX names the process only
once its heartbeats have stayed away for long. The kernel closes the socket of a process that ends,
however it ends, so that one look tells at once. Nothing is sent, and no thread waits.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from types import TracebackType
from typing import Any

import jax

from pmapx import _fastpath

_addresses: dict[int, tuple[str, int]] = {}
_held: list[socket.socket] = []


def hold(coordinator: str, timeout: float) -> None:
    """Opens this process's lifeline, on the interface that leads to the coordinator."""
    if not _fastpath.HAS_COORDINATION or _held:
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
    previous = sys.excepthook

    def name_the_lost(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        previous(kind, error, trace)
        for process in lost():
            print(f"pmapx: process {process} was lost.", file=sys.stderr, flush=True)

    sys.excepthook = name_the_lost


def lost(patience: float = 2.0) -> list[int]:
    """Returns the processes that have ended; () before ``initialize``."""
    here = jax.process_index()
    return [
        process
        for process, address in sorted(_addresses.items())
        if process != here and not _answers(address, patience)
    ]


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
