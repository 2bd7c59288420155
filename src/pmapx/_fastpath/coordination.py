"""What processes say to each other by way of the coordinator."""

from __future__ import annotations

import functools
from typing import Any

import jax

from pmapx._fastpath import private
from pmapx._fastpath.pieces import Piece, Unlike


def gloo_on_loopback() -> None:
    """Lets CPU collectives of processes on one machine listen on loopback alone."""
    make = getattr(private.native, "make_gloo_tcp_collectives", None)
    if make is not None and "hostname" in (make.__doc__ or ""):
        private.native.make_gloo_tcp_collectives = functools.partial(make, hostname="127.0.0.1")


def wait_for_all(name: str, timeout: float) -> list[int] | None:
    """Waits for all processes at a barrier; on time-out returns those that did not come."""
    client: Any = private.distributed.global_state.client
    client.key_value_set(f"{name}/{jax.process_index()}", "here")
    try:
        client.wait_at_barrier(name, int(timeout * 1000))
    except Exception as error:
        if "DEADLINE_EXCEEDED" not in str(error) and "timed out" not in str(error):
            raise
        came = {int(key.rsplit("/", 1)[1]) for key, _ in client.key_value_dir_get(name)}
        return [process for process in range(jax.process_count()) if process not in came]
    return None


def published(name: str, text: str, timeout: float) -> dict[int, str]:
    """Tells all processes ``text`` under a name; returns what each of them told."""
    client: Any = private.distributed.global_state.client
    client.key_value_set(f"{name}/{private.distributed.global_state.process_id}", text)
    return {
        process: client.blocking_key_value_get(f"{name}/{process}", int(timeout * 1000))
        for process in range(private.distributed.global_state.num_processes)
    }


def coordinator_address() -> str | None:
    """Returns where the processes meet, once they have."""
    state = getattr(private.distributed, "global_state", None)
    return getattr(state, "coordinator_address", None)


def can_coordinate() -> bool:
    """Says whether processes can talk by way of the coordinator."""
    return COORDINATION.is_usable()


def _probe_coordination() -> None:
    """Stores a value under a name of this process's own, and reads it back."""
    state: Any = private.distributed.global_state
    if state.client is None:
        for method in ("key_value_dir_get", "wait_at_barrier"):
            getattr(private.native.DistributedRuntimeClient, method)
        return
    name = f"pmapx/probe/{state.process_id}"
    state.client.key_value_set(f"{name}/here", "here")
    if list(state.client.key_value_dir_get(name)) != [(f"{name}/here", "here")]:
        raise Unlike("the coordinator does not return what was stored")
    if state.client.blocking_key_value_get(f"{name}/here", 10_000) != "here":
        raise Unlike("the coordinator does not return what was stored")
    if state.num_processes != jax.process_count():
        raise Unlike(f"{state.num_processes} processes in place of {jax.process_count()}")


COORDINATION = Piece(
    "barrier that knows who came", _probe_coordination, "a lost process is not named"
)
