"""JAX's coordination service, by which processes of a program exchange messages."""

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any

import jax

from pmapx._src.fastpath import jax_src
from pmapx._src.fastpath.probes import Piece, Unlike


def gloo_on_loopback() -> None:
    """Lets CPU collectives of processes on one machine listen on loopback alone."""
    make = getattr(jax_src.native, "make_gloo_tcp_collectives", None)
    if make is not None and "hostname" in (make.__doc__ or ""):
        jax_src.native.make_gloo_tcp_collectives = functools.partial(make, hostname="127.0.0.1")


def coordination_client() -> Any | None:
    """Returns JAX's client of the coordination service; None before the processes have joined."""
    client = getattr(_state(), "client", None)
    return client if client is not None and COORDINATION.is_usable() else None


def joined_as() -> tuple[int, int] | None:
    """Returns this process's index and how many there are, once they have joined.

    Unlike ``jax.process_index`` this does not start the devices. The twin reads the environment
    that Open MPI and ``pmapx run -n`` set.
    """
    if coordination_client() is not None:
        state: Any = _state()
        return state.process_id, state.num_processes
    process, count = map(os.environ.get, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
    if not process or not count or not jax.distributed.is_initialized():
        return None
    return int(process), int(count)


def _state() -> Any:
    return getattr(jax_src.distributed, "global_state", None)


def coordinator_address() -> str | None:
    return getattr(_state(), "coordinator_address", None)


def after_shutdown(action: Callable[[], object]) -> None:
    """Calls ``action`` once this process has disconnected, at exit or before."""
    if coordination_client() is None:
        return
    state = _state()
    shut_down = state.shutdown

    def shutdown() -> None:
        try:
            shut_down()
        finally:
            action()

    state.shutdown = shutdown


def drop_exit_barrier() -> bool:
    """Keeps JAX from waiting for the other processes at exit; False where that is not possible.

    An exit handler of JAX waits, and also takes down the devices. The twin has to end the process
    before that handler runs.
    """
    if coordination_client() is None or not hasattr(jax_src.api, "clean_up"):
        return False
    atexit.unregister(jax_src.api.clean_up)
    if hasattr(jax_src.dispatch, "wait_for_tokens"):
        atexit.unregister(jax_src.dispatch.wait_for_tokens)
    return True


def _probe_coordination() -> None:
    """Stores a value under a name of this process's own, and reads it back."""
    state: Any = jax_src.distributed.global_state
    for method in ("key_value_set", "key_value_try_get", "wait_at_barrier"):
        getattr(jax_src.native.DistributedRuntimeClient, method)
    if state.client is None:  # Only ``pmapx info`` asks before the processes have joined.
        return
    folder = f"pmapx/probe/{state.process_id}/"
    state.client.key_value_set(f"{folder}key", "here", allow_overwrite=True)
    listed = list(state.client.key_value_dir_get(folder))
    found = state.client.key_value_try_get(f"{folder}key")
    if found != "here" or listed != [(f"{folder}key", "here")]:
        raise Unlike("the coordinator does not return what was stored")


COORDINATION = Piece(
    "store of the coordination service",
    _probe_coordination,
    "a process that fails or is lost is not named",
)
