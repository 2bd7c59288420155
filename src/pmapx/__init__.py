"""pmap for today's JAX, and the road from it to ``shard_map``.

The names below are the public API. They are implemented in ``pmapx._src`` and imported with their
first use, so that tools that need no JAX start at once.
"""

import importlib
import os
from typing import TYPE_CHECKING

from pmapx._version import __version__

if TYPE_CHECKING:
    from pmapx import errors, reports, testing
    from pmapx._src.arrays.device_put import (
        device_put_replicated,
        device_put_sharded,
        replicate,
        shard_batch,
    )
    from pmapx._src.arrays.local_shards import local_slice, to_host, unreplicate
    from pmapx._src.arrays.prefetch import prefetch
    from pmapx._src.arrays.stitch import stitch, unstitch
    from pmapx._src.audit import audit
    from pmapx._src.audit.report.audit_report import AuditReport
    from pmapx._src.codemod.migration import migrate
    from pmapx._src.distributed.initialize import Cluster, barrier, initialize
    from pmapx._src.distributed.launcher import launch
    from pmapx._src.errors import PmapxError, PmapxWarning
    from pmapx._src.legacy import Installation, install, uninstall
    from pmapx._src.lint.check import check
    from pmapx._src.map.cache_info import CacheInfo, Move
    from pmapx._src.map.pmap import Pmapped, pmap
    from pmapx._src.spmd.auto_out_axes import AUTO
    from pmapx._src.verify.verify import verify

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
    "check",
    "device_put_replicated",
    "device_put_sharded",
    "errors",
    "initialize",
    "install",
    "launch",
    "local_slice",
    "migrate",
    "pmap",
    "prefetch",
    "replicate",
    "reports",
    "shard_batch",
    "stitch",
    "testing",
    "to_host",
    "uninstall",
    "unreplicate",
    "unstitch",
    "verify",
]

_MODULES = {
    "AUTO": "spmd.auto_out_axes",
    "AuditReport": "audit.report.audit_report",
    "CacheInfo": "map.cache_info",
    "Cluster": "distributed.initialize",
    "Installation": "legacy",
    "Move": "map.cache_info",
    "Pmapped": "map.pmap",
    "PmapxError": "errors",
    "PmapxWarning": "errors",
    "audit": "audit",
    "barrier": "distributed.initialize",
    "check": "lint.check",
    "device_put_replicated": "arrays.device_put",
    "device_put_sharded": "arrays.device_put",
    "initialize": "distributed.initialize",
    "install": "legacy",
    "launch": "distributed.launcher",
    "local_slice": "arrays.local_shards",
    "migrate": "codemod.migration",
    "pmap": "map.pmap",
    "prefetch": "arrays.prefetch",
    "replicate": "arrays.device_put",
    "shard_batch": "arrays.device_put",
    "stitch": "arrays.stitch",
    "to_host": "arrays.local_shards",
    "uninstall": "legacy",
    "unreplicate": "arrays.local_shards",
    "unstitch": "arrays.stitch",
    "verify": "verify.verify",
}


def __getattr__(name: str) -> object:
    if name in ("errors", "reports", "testing"):
        return importlib.import_module(f"pmapx.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"pmapx._src.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "PMAPX_HOOKS" in os.environ:
    # The hooks of a watched program run with JAX's import, and nothing of ours may be half imported
    # then.
    importlib.import_module("jax")
