"""pmap for today's JAX, and the road from it to ``shard_map``."""

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING

from pmapx._version import __version__

if TYPE_CHECKING:
    from pmapx.arrays import device_put_replicated, device_put_sharded, replicate, shard_batch
    from pmapx.audit import audit
    from pmapx.audit.report import AuditReport
    from pmapx.counts import CacheInfo, Move
    from pmapx.errors import PmapxError, PmapxWarning
    from pmapx.legacy import Installation, install, uninstall
    from pmapx.pmap import Pmapped, pmap
    from pmapx.prefetch import prefetch
    from pmapx.processes import Cluster, barrier, initialize
    from pmapx.replicas import AUTO
    from pmapx.rows import local_slice, to_host, unreplicate
    from pmapx.stitching import stitch, unstitch

__all__ = [
    "AUTO",
    "AuditReport",
    "CacheInfo",
    "Cluster",
    "Installation",
    "Move",
    "Pmapped",
    "PmapxError",
    "PmapxWarning",
    "__version__",
    "audit",
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

_HOMES = {
    "AUTO": "replicas",
    "AuditReport": "audit.report",
    "CacheInfo": "counts",
    "Cluster": "processes",
    "Installation": "legacy",
    "Move": "counts",
    "Pmapped": "pmap",
    "PmapxError": "errors",
    "PmapxWarning": "errors",
    "audit": "audit",
    "barrier": "processes",
    "device_put_replicated": "arrays",
    "device_put_sharded": "arrays",
    "initialize": "processes",
    "install": "legacy",
    "local_slice": "rows",
    "pmap": "pmap",
    "prefetch": "prefetch",
    "replicate": "arrays",
    "shard_batch": "arrays",
    "stitch": "stitching",
    "to_host": "rows",
    "uninstall": "legacy",
    "unreplicate": "rows",
    "unstitch": "stitching",
}


class _Package(types.ModuleType):
    """Imports JAX with the first use of a name, so that tools that need none start at once."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in _HOMES:
            home = importlib.import_module(f"{self.__name__}.{_HOMES[name]}")
            found: object = getattr(home, name)
            setattr(self, name, found)
            return found
        try:
            return importlib.import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError:
            message = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(message) from None

    def __setattr__(self, name: str, held: object) -> None:
        # Importing the module pmapx.pmap must not put it in the place of the function.
        if name not in _HOMES or not isinstance(held, types.ModuleType):
            super().__setattr__(name, held)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package

if "PMAPX_HOOKS" in os.environ:
    # The hooks of a watched program run with JAX's import, and nothing of ours may be half imported
    # then.
    importlib.import_module("jax")
