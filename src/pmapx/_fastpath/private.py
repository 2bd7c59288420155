"""The modules of ``jax._src`` that the other files use; one that is not there has no attributes."""

from __future__ import annotations

import importlib
import os
from typing import Any

PUBLIC_ONLY = os.environ.get("PMAPX_PUBLIC_ONLY", "") not in ("", "0")


class _Missing:
    """Stands for a module that is not there, or that must not be used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(f"no module {self._name}")


def _module(name: str, attribute: str | None = None) -> Any:
    try:
        if PUBLIC_ONLY:
            raise ImportError("PMAPX_PUBLIC_ONLY is set")
        module = importlib.import_module(name)
        return module if attribute is None else getattr(module, attribute)
    except (ImportError, AttributeError):
        return _Missing(name)


config = _module("jax._src.config")
core = _module("jax._src.core")
distributed = _module("jax._src.distributed")
dtypes = _module("jax._src.dtypes")
native = _module("jax._src.lib", "_jax")
pxla = _module("jax._src.interpreters.pxla")
sharding_impls = _module("jax._src.sharding_impls")
tree_util = _module("jax._src.tree_util")
util = _module("jax._src.util")

try:
    _FASTPATH_FIELDS = (
        "xla_executable",
        "out_pytree_def",
        "in_shardings",
        "out_shardings",
        "out_avals",
        "out_committed",
        "kept_var_bitvec",
        "in_device_local_layouts",
        "const_args",
    )
    HAS_DISPATCH = (
        pxla.MeshExecutableFastpathData._fields == _FASTPATH_FIELDS
        and callable(native.pjit)
        and isinstance(native.ArrayImpl, type)
        and callable(pxla.reflatten_outputs_for_dispatch)
        and callable(pxla.cc_shard_arg)
        and callable(pxla.JitGlobalCppCacheKeys)
        and hasattr(tree_util, "dispatch_registry")
        and callable(sharding_impls.physical_sharding)
    )
    HAS_TRACE_CONTEXT = callable(config.trace_context)
    HAS_TRACE_STATE = callable(core.trace_state_clean)
    HAS_ARRAYS = isinstance(native.ArrayImpl, type) and callable(pxla.batched_device_put)
    HAS_RELOAD = (
        HAS_DISPATCH
        and callable(native.DeviceList)
        and callable(native.Client.serialize_executable)
        and callable(native.Client.deserialize_executable)
    )
    HAS_CACHES = callable(util.cache)
    HAS_COORDINATION = (
        hasattr(distributed.global_state, "client")
        and callable(native.DistributedRuntimeClient.wait_at_barrier)
        and callable(native.DistributedRuntimeClient.key_value_set)
        and callable(native.DistributedRuntimeClient.key_value_dir_get)
    )
except AttributeError:
    HAS_DISPATCH = HAS_TRACE_CONTEXT = HAS_TRACE_STATE = False
    HAS_ARRAYS = HAS_RELOAD = HAS_COORDINATION = HAS_CACHES = False
# Not in JAX 0.8, where results that cannot be made by a LocalProgram are taken apart in public.
CAN_REWRAP = HAS_DISPATCH and hasattr(native.ArrayImpl, "_rewrap_with_aval_and_sharding")
