"""The only package that may use ``jax._src``.

Each piece here has a public twin, and both are tested. A piece is probed at its first use, side by
side with its twin (``pieces.py``); if it raises or differs, pmapx warns and uses the twin.
``PMAPX_PUBLIC_ONLY=1`` uses the twins alone. What the pieces are for:

- ``Dispatcher``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a
  signature that it has not seen. The twin calls that handler each time.
- ``is_staging``: whether something is being traced. The twin tries what JAX refuses then.
- ``out_tree``: the structure of a traced result. The twin lowers it.
- ``array_type``: the class of concrete arrays. The twin makes one, which starts the devices.
- ``weakly_typed``: an array of weak type. The twin leaves its type as it is.
- ``put_rows``: an array made of rows that go to a device each. The twin puts them one by one.
- ``uncommitted``: an array that may be used with arrays of other devices. The twin copies it by way
  of the host.
- ``LocalProgram``: a program that spans processes, loaded for this process's devices alone, so
  that it takes and gives host-local arrays. ``GlobalProgram``: one that gives global arrays, of
  which host-local ones are made in C++. The twin converts each array.
- ``gloo_on_loopback``: the address that CPU collectives listen on. The twin leaves it to JAX.
- ``more_cpu_devices``: a second set of virtual CPU devices. The twin has those of JAX only.
- ``pmap_options``: what a function of ``jax.pmap`` was told. The twin knows pmapx's own only.
- ``HAS_HIDDEN_FRAMES``: whether JAX leaves pmapx's frames out of tracebacks as it does its own. The
  twin leaves tracebacks as they are.
- ``coordination_client``: the store of JAX's coordination service. Without it a barrier is a
  collective, and processes do not learn of each other's failures.
- ``after_shutdown``: called once this process has left the others. Needed with the store only.
- ``drop_exit_barrier``: lets a failed process end without the others. The twin ends it earlier.
"""

from pmapx._src.fastpath.arrays import array_type, put_rows, uncommitted, weakly_typed
from pmapx._src.fastpath.coordination_service import (
    after_shutdown,
    coordination_client,
    coordinator_address,
    drop_exit_barrier,
    gloo_on_loopback,
    joined_as,
)
from pmapx._src.fastpath.dispatch import Dispatcher, MovingProgram, Repeatable, takes_as_placed
from pmapx._src.fastpath.jax_pmap_options import pmap_options
from pmapx._src.fastpath.multiprocess import GlobalProgram, LocalProgram, can_run_locally
from pmapx._src.fastpath.probes import probed_pieces
from pmapx._src.fastpath.tracebacks import HAS_HIDDEN_FRAMES
from pmapx._src.fastpath.tracing import is_staging, out_tree
from pmapx._src.fastpath.virtual_devices import more_cpu_devices

__all__ = [
    "HAS_HIDDEN_FRAMES",
    "Dispatcher",
    "GlobalProgram",
    "LocalProgram",
    "MovingProgram",
    "Repeatable",
    "after_shutdown",
    "array_type",
    "can_run_locally",
    "coordination_client",
    "coordinator_address",
    "drop_exit_barrier",
    "gloo_on_loopback",
    "is_staging",
    "joined_as",
    "more_cpu_devices",
    "out_tree",
    "pmap_options",
    "probed_pieces",
    "put_rows",
    "takes_as_placed",
    "uncommitted",
    "weakly_typed",
]
