"""pmap for today's JAX, and the road from it to ``shard_map``."""

from pmapx._version import __version__
from pmapx.arrays import device_put_replicated, device_put_sharded, replicate, shard_batch
from pmapx.counts import CacheInfo, Move
from pmapx.errors import PmapxError, PmapxWarning
from pmapx.legacy import Installation, install, uninstall
from pmapx.pmap import Pmapped, pmap
from pmapx.prefetch import prefetch
from pmapx.processes import Cluster, barrier, initialize
from pmapx.rows import local_slice, to_host, unreplicate
from pmapx.stitching import stitch, unstitch

__all__ = [
    "CacheInfo",
    "Cluster",
    "Installation",
    "Move",
    "Pmapped",
    "PmapxError",
    "PmapxWarning",
    "__version__",
    "barrier",
    "device_put_replicated",
    "device_put_sharded",
    "initialize",
    "install",
    "local_slice",
    "pmap",
    "prefetch",
    "replicate",
    "shard_batch",
    "stitch",
    "to_host",
    "uninstall",
    "unreplicate",
    "unstitch",
]
