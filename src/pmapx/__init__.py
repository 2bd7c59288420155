"""pmap for today's JAX, and the road from it to ``shard_map``."""

from pmapx._version import __version__
from pmapx.counts import CacheInfo, Move
from pmapx.errors import PmapxError, PmapxWarning
from pmapx.pmap import Pmapped, pmap
from pmapx.processes import Cluster, barrier, initialize
from pmapx.stitching import stitch, unstitch

__all__ = [
    "CacheInfo",
    "Cluster",
    "Move",
    "Pmapped",
    "PmapxError",
    "PmapxWarning",
    "__version__",
    "barrier",
    "initialize",
    "pmap",
    "stitch",
    "unstitch",
]
