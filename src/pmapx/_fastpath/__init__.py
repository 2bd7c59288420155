"""The only package that may use ``jax._src``.

Each piece here has a public twin, and both are tested. A piece is probed at its first use, side by
side with its twin (``pieces.py``); if it raises or differs, pmapx warns and uses the twin.
``PMAPX_PUBLIC_ONLY=1`` uses the twins alone. What the pieces are for:

- ``Dispatcher``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a
  signature that it has not seen. The twin calls that handler each time.
- ``trace_context``: the settings that a traced program depends on. The twin reads ``jax.config``.
- ``is_staging``: whether something is being traced. The twin tries what JAX refuses then.
- ``array_type``: the class of concrete arrays. The twin makes one, which starts the devices.
- ``weakly_typed``: an array of weak type. The twin leaves its type as it is.
- ``put_rows``: an array made of rows that go to a device each. The twin puts them one by one.
- ``uncommitted``: an array that may be used with arrays of other devices. The twin copies it by way
  of the host.
- ``LocalProgram``: a program that spans processes, loaded for this process's devices alone, so
  that it takes and gives host-local arrays. ``GlobalProgram``: one that gives global arrays, of
  which host-local ones are made in C++. The twin converts each array.
- ``cache_generation``: changes when ``jax.clear_caches()`` is called. The twin never does.
- ``gloo_on_loopback``: the address that CPU collectives listen on. The twin leaves it to JAX.
- ``more_cpu_devices``: a second set of virtual CPU devices. The twin has those of JAX only.
- ``pmap_options``: what a function of ``jax.pmap`` was told. The twin knows pmapx's own only.
- ``wait_for_all``: a barrier that knows who came. The twin waits for a collective.
"""

from pmapx._fastpath.arrays import array_type, put_rows, uncommitted, weakly_typed
from pmapx._fastpath.coordination import (
    can_coordinate,
    coordinator_address,
    gloo_on_loopback,
    published,
    wait_for_all,
)
from pmapx._fastpath.dispatch import Dispatcher, Repeatable, takes_as_placed
from pmapx._fastpath.jax_pmap import pmap_options
from pmapx._fastpath.multiprocess import GlobalProgram, LocalProgram, can_run_locally
from pmapx._fastpath.pieces import probed_pieces
from pmapx._fastpath.topology import more_cpu_devices
from pmapx._fastpath.tracing import cache_generation, is_staging, trace_context

__all__ = [
    "Dispatcher",
    "GlobalProgram",
    "LocalProgram",
    "Repeatable",
    "array_type",
    "cache_generation",
    "can_coordinate",
    "can_run_locally",
    "coordinator_address",
    "gloo_on_loopback",
    "is_staging",
    "more_cpu_devices",
    "pmap_options",
    "probed_pieces",
    "published",
    "put_rows",
    "takes_as_placed",
    "trace_context",
    "uncommitted",
    "wait_for_all",
    "weakly_typed",
]
