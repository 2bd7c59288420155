"""The only package that may use ``jax._src``.

Each piece has a public twin beside it, and both are tested. A piece is probed at its first use,
side by side with its twin (``probes``); if it raises or differs, pmapx warns and uses the twin.
``PMAPX_PUBLIC_ONLY=1`` uses the twins alone. The modules:

- ``jax_src``: the private modules of JAX. ``probes``: probing, and choosing the twin.
- ``dispatch``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a cache
  miss. The twin calls that handler each time.
- ``multiprocess``: multi-process programs that the dispatch runs on host-local arrays. The twin
  converts each array.
- ``tracing``: whether something is being traced; the twin tries what JAX refuses then. The
  structure of a traced result; the twin lowers it.
- ``arrays``: the class of concrete arrays; the twin makes one, which starts the devices. Arrays of
  weak type; the twin leaves the type as it is. Arrays of one shard per device; the twin puts the
  shards one by one. Uncommitted arrays; the twin copies by way of the host.
- ``tracebacks``: pmapx's frames left out of tracebacks as JAX's are. The twin leaves them in.
- ``jax_pmap_options``: the options of a function of ``jax.pmap``. The twin knows pmapx's own only.
- ``virtual_devices``: a second set of virtual CPU devices. The twin has those of JAX only.
- ``coordination_service``: the key-value store that processes share, without which a barrier is a
  collective and processes do not learn of each other's failures; the address that CPU collectives
  listen on; an exit that does not wait for the other processes.
"""

from pmapx._src.fastpath.arrays import array_type, put_shards, uncommitted, weakly_typed
from pmapx._src.fastpath.coordination_service import (
    after_shutdown,
    coordination_client,
    coordinator_address,
    drop_exit_barrier,
    gloo_on_loopback,
    joined_as,
)
from pmapx._src.fastpath.dispatch import (
    Dispatcher,
    Repeatable,
    TransferringProgram,
    takes_as_placed,
)
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
    "Repeatable",
    "TransferringProgram",
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
    "put_shards",
    "takes_as_placed",
    "uncommitted",
    "weakly_typed",
]
