"""``initialize`` and ``barrier``: connecting to the other processes, and waiting for them."""

import dataclasses
import functools
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

from pmapx._src import errors, fastpath
from pmapx._src.distributed import addresses, key_value_store, liveness, shutdown, stall_report

logger = logging.getLogger("pmapx")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The detected cluster environment.

    Attributes:
      kind: ``"arguments"``, ``"Open MPI"``, ``"Slurm"``, ``"TPU pod"`` or ``"Kubernetes"``.
      found_by: the environment variable, or other source, by which it was detected.
      coordinator: the coordinator address, if given explicitly.
      process: the index of this process, if given explicitly.
      processes: the number of processes, if given explicitly.
    """

    kind: str
    found_by: str
    coordinator: str | None = None
    process: int | None = None
    processes: int | None = None


# In the order in which JAX checks.
_SIGNS = (
    ("Open MPI", ("OMPI_MCA_orte_hnp_uri",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("Open MPI", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("Slurm", ("SLURM_JOB_ID", "SLURM_STEP_NODELIST"), "SLURM_PROCID", "SLURM_NTASKS"),
    ("TPU pod", ("TPU_WORKER_HOSTNAMES",), "TPU_WORKER_ID", ""),
    ("TPU pod", ("TPU_PROCESS_ADDRESSES",), "TPU_WORKER_ID", ""),
    ("TPU pod", ("MEGASCALE_COORDINATOR_ADDRESS",), "", ""),
    ("Kubernetes", ("KUBERNETES_SERVICE_HOST",), "JOB_COMPLETION_INDEX", ""),
)


def find_cluster(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that environment variables describe, or None.

    >>> find_cluster({"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1"})
    Cluster(kind='Slurm', found_by='SLURM_JOB_ID', coordinator=None, process=1, processes=None)
    """
    for kind, signs, process, processes in _SIGNS:
        if all(sign in environment for sign in signs):
            return Cluster(
                kind,
                signs[0],
                environment.get("JAX_COORDINATOR_ADDRESS"),
                _number(environment.get(process)),
                _number(environment.get(processes)),
            )
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 300,
    heartbeat_timeout: float = 100,
    **options: Any,
) -> Cluster:
    """Connects to the other processes, like ``jax.distributed.initialize``.

    Without arguments, the cluster is detected as JAX does: Open MPI, Slurm, TPU pods and
    Kubernetes. The detected cluster is logged and returned; an error names what is missing.

    Examples:
      >>> import pmapx
      >>> pmapx.initialize("127.0.0.1:12345", num_processes=1, process_id=0)  # doctest: +SKIP
      Cluster(kind='arguments', ...)

    Args:
      coordinator_address: host and port of process 0.
      num_processes: the number of processes.
      process_id: the index of this process, from 0.
      timeout: seconds to wait for the other processes.
      heartbeat_timeout: seconds without a heartbeat after which a process counts as lost; all
        others then end with an error that names it. A failed collective names it at once.
      **options: further options of ``jax.distributed.initialize``.

    Returns:
      The detected cluster.
    """
    given = {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        cluster: Cluster | None = Cluster("arguments", "its arguments")
    else:
        cluster = find_cluster(os.environ)
    if cluster is None and (os.path.exists("/dev/accel0") or "TPU_NAME" in os.environ):
        cluster = Cluster("TPU pod", "its devices")
    if cluster is None:
        raise errors.NoCluster(missing, sorted({sign for _, s, _, _ in _SIGNS for sign in s}))
    cluster = dataclasses.replace(
        cluster,
        coordinator=coordinator_address or cluster.coordinator,
        process=cluster.process if process_id is None else process_id,
        processes=num_processes or cluster.processes,
    )
    logger.info(
        "pmapx: %s detected by %s: process %s of %s, coordinator %s",
        cluster.kind,
        cluster.found_by,
        "?" if cluster.process is None else cluster.process,
        cluster.processes or "?",
        cluster.coordinator or "chosen by JAX",
    )
    if cluster.coordinator is not None and cluster.process is not None:
        _check_coordinator(cluster.coordinator, cluster.process, timeout)
    jax.distributed.initialize(
        coordinator_address,
        num_processes,
        process_id,
        initialization_timeout=int(timeout),
        heartbeat_timeout_seconds=int(heartbeat_timeout),
        **options,
    )
    shutdown.guard()
    joined(timeout, heartbeat_timeout)
    return cluster


def joined(timeout: float, heartbeat_timeout: float) -> None:
    """Starts the detection of failed peers, after this process has connected to them."""
    _passed.clear()  # A new coordination service has no barriers yet.
    coordinator = fastpath.coordinator_address()
    if coordinator is not None:
        liveness.hold(coordinator, timeout)
    stall_report.watch(heartbeat_timeout)


def extend_jax_initialize() -> None:
    """Makes ``jax.distributed.initialize`` start the detection of failed peers too."""
    original = jax.distributed.initialize

    @functools.wraps(original)
    def extended(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        timeout = kwargs.get("initialization_timeout", 300)
        joined(timeout, kwargs.get("heartbeat_timeout_seconds", 100))

    jax.distributed.initialize = extended


def _check_coordinator(address: str, process: int, timeout: float) -> None:
    """Raises if process 0 cannot listen on an address, or does not in time.

    JAX would terminate the process without a Python exception.
    """
    split = addresses.split(address)
    if split is None:
        raise errors.BadCoordinator(address, process, "it is not of the form host:port")
    host, port = split
    if process == 0:
        family = addresses.family_of(host, port)
        loopback = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
        with socket.socket(family) as probe:
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                probe.bind((loopback.get(host, ""), port))
            except OSError as error:
                raise errors.BadCoordinator(address, process, str(error)) from None
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                problem = f"no answer after {timeout:g} seconds ({error})"
                raise errors.BadCoordinator(address, process, problem) from None
            time.sleep(0.1)


# How many barriers of each name all processes have passed; equal in all processes.
_passed: Counter[str] = Counter()
_waiting: dict[str, threading.Thread] = {}


def barrier(name: str, timeout: float = 300) -> None:
    """Waits until all processes have reached the barrier of this name.

    Examples:
      >>> import pmapx
      >>> pmapx.barrier("data is prepared", timeout=60)

    Args:
      name: the name of the barrier, the same in all processes; it can be reused. After a timeout,
        the next call waits at the same barrier, so that a late process can still pass it.
      timeout: seconds to wait; then ``BarrierTimeout`` names the processes that did not reach it.
    """
    if jax.process_count() == 1:
        return
    if key_value_store.is_available():
        missing = _wait_for_all(f"pmapx/barrier/{name}/{_passed[name]}", timeout)
    else:
        missing = _wait_for_collective(f"pmapx/{name}/{_passed[name]}", timeout)
    if missing is not None:
        raise errors.BarrierTimeout(name, timeout, missing, jax.process_index())
    _passed[name] += 1


def _wait_for_all(name: str, timeout: float) -> list[int] | None:
    """Waits for all processes; on timeout, returns those that did not reach the barrier.

    A barrier of JAX fails for all processes when the first one times out, and cannot be reused. So
    each attempt uses a new one: failed attempts are recorded in the store that all processes read.
    """
    here, deadline = jax.process_index(), time.monotonic() + timeout
    while True:
        attempt = f"{name}/attempt/{len(key_value_store.entries(f'{name}/failed'))}"
        key_value_store.put(f"{attempt}/{here}", "", overwrite=True)
        if key_value_store.wait_at_barrier(attempt, max(deadline - time.monotonic(), 0.001)):
            return None
        came = {int(process) for process in key_value_store.entries(attempt)}
        key_value_store.put(f"{name}/failed/{attempt.rpartition('/')[2]}", "", overwrite=True)
        if time.monotonic() >= deadline:
            return [process for process in range(jax.process_count()) if process not in came]


def _wait_for_collective(name: str, timeout: float) -> list[int] | None:
    """Waits for all processes with a collective; on timeout, returns an empty list."""
    if name not in _waiting:
        _waiting[name] = threading.Thread(
            target=multihost_utils.sync_global_devices, args=(name,), daemon=True
        )
        _waiting[name].start()
    _waiting[name].join(timeout)
    if _waiting[name].is_alive():
        return []
    del _waiting[name]
    return None
