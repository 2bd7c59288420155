"""The only package that may use ``jax._src``.

Each piece has a public twin next to it, and both are tested. A piece is probed at its first use,
side by side with its twin (``probes``); if it raises or differs, pmapx warns and uses the twin.
``PMAPX_PUBLIC_ONLY=1`` uses the twins alone. The modules:

- ``jax_src``: the private modules of JAX. ``probes``: probing, and choosing the twin.
- ``dispatch``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a cache
  miss. The twin calls that handler each time.
- ``multiprocess``: multi-process programs that the dispatch runs on host-local arrays. The twin
  converts each array.
- ``tracing``: whether something is being traced; the twin tries what JAX refuses then. The
  structure of a traced result; the twin lowers it. Tracebacks without pmapx's frames, as without
  JAX's; the twin leaves them in.
- ``arrays``: the class of concrete arrays; the twin makes one, which starts the devices. Arrays of
  weak type; the twin leaves the type as it is. Arrays of one shard per device; the twin puts the
  shards one by one. Uncommitted arrays; the twin copies through the host.
- ``jax_pmap_options``: the options of a function of ``jax.pmap``. The twin knows pmapx's own only.
- ``virtual_devices``: a second set of virtual CPU devices. The twin has those of JAX only.
- ``coordination_service``: the key-value store that processes share, without which a barrier is a
  collective and processes do not learn of each other's failures; the address that CPU collectives
  listen on; an exit that does not wait for the other processes.
"""

from pmapx._src.fastpath.arrays import array_type as array_type
from pmapx._src.fastpath.arrays import put_shards as put_shards
from pmapx._src.fastpath.arrays import uncommitted as uncommitted
from pmapx._src.fastpath.arrays import weakly_typed as weakly_typed
from pmapx._src.fastpath.coordination_service import after_shutdown as after_shutdown
from pmapx._src.fastpath.coordination_service import coordination_client as coordination_client
from pmapx._src.fastpath.coordination_service import coordinator_address as coordinator_address
from pmapx._src.fastpath.coordination_service import drop_exit_barrier as drop_exit_barrier
from pmapx._src.fastpath.coordination_service import gloo_on_loopback as gloo_on_loopback
from pmapx._src.fastpath.coordination_service import joined_as as joined_as
from pmapx._src.fastpath.dispatch import Dispatcher as Dispatcher
from pmapx._src.fastpath.dispatch import Repeatable as Repeatable
from pmapx._src.fastpath.dispatch import TransferringProgram as TransferringProgram
from pmapx._src.fastpath.dispatch import takes_as_placed as takes_as_placed
from pmapx._src.fastpath.jax_pmap_options import pmap_options as pmap_options
from pmapx._src.fastpath.multiprocess import GlobalProgram as GlobalProgram
from pmapx._src.fastpath.multiprocess import LocalProgram as LocalProgram
from pmapx._src.fastpath.multiprocess import can_run_locally as can_run_locally
from pmapx._src.fastpath.probes import probed_pieces as probed_pieces
from pmapx._src.fastpath.tracing import HAS_HIDDEN_FRAMES as HAS_HIDDEN_FRAMES
from pmapx._src.fastpath.tracing import is_staging as is_staging
from pmapx._src.fastpath.tracing import out_tree as out_tree
from pmapx._src.fastpath.virtual_devices import more_cpu_devices as more_cpu_devices
