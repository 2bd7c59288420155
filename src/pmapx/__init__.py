"""pmap for today's JAX, and the road from it to ``shard_map``."""

from pmapx._version import __version__
from pmapx.counts import CacheInfo, Move
from pmapx.errors import PmapxError, PmapxWarning
from pmapx.pmap import Pmapped, pmap

__all__ = ["CacheInfo", "Move", "Pmapped", "PmapxError", "PmapxWarning", "__version__", "pmap"]
