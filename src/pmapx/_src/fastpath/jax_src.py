"""The modules of ``jax._src`` that the other files use; a missing one has no attributes."""

import importlib
import os
from typing import Any

PUBLIC_ONLY = os.environ.get("PMAPX_PUBLIC_ONLY", "") not in ("", "0")


class _Missing:
    """Stands for a module that is missing, or must not be used."""

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
    except Exception:  # Whatever a module of another release does when it is imported.
        return _Missing(name)


api = _module("jax._src.api")
config = _module("jax._src.config")
core = _module("jax._src.core")
dispatch = _module("jax._src.dispatch")
distributed = _module("jax._src.distributed")
dtypes = _module("jax._src.dtypes")
native = _module("jax._src.lib", "_jax")
pxla = _module("jax._src.interpreters.pxla")
sharding_impls = _module("jax._src.sharding_impls")
traceback_util = _module("jax._src.traceback_util")
tree_util = _module("jax._src.tree_util")
