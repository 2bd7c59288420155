"""pmap for today's JAX, and the migration from it to ``jit`` and ``shard_map``.

The names below are the public API. They are implemented in ``pmapx._src`` and imported at their
first use, so that tools that do not need JAX start quickly.
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
        prefetch,
        replicate,
        shard_batch,
    )
    from pmapx._src.arrays.local_shards import local_slice, to_host, unreplicate
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
    "arrays.device_put": (
        "device_put_replicated",
        "device_put_sharded",
        "prefetch",
        "replicate",
        "shard_batch",
    ),
    "arrays.local_shards": ("local_slice", "to_host", "unreplicate"),
    "arrays.stitch": ("stitch", "unstitch"),
    "audit": ("audit",),
    "audit.report.audit_report": ("AuditReport",),
    "codemod.migration": ("migrate",),
    "distributed.initialize": ("Cluster", "barrier", "initialize"),
    "distributed.launcher": ("launch",),
    "errors": ("PmapxError", "PmapxWarning"),
    "legacy": ("Installation", "install", "uninstall"),
    "lint.check": ("check",),
    "map.cache_info": ("CacheInfo", "Move"),
    "map.pmap": ("Pmapped", "pmap"),
    "spmd.auto_out_axes": ("AUTO",),
    "verify.verify": ("verify",),
}


def __getattr__(name: str) -> object:
    if name in ("errors", "reports", "testing"):
        return importlib.import_module(f"pmapx.{name}")
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"pmapx._src.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "PMAPX_HOOKS" in os.environ:
    # The hooks of a watched program run with JAX's import, and nothing of ours may be half imported
    # then.
    importlib.import_module("jax")
