"""Names that JAX removed or renamed, restored with their old meaning.

Names that this release of JAX has are left alone. Those without an equivalent today (``xmap``,
``host_callback``, ``xla_computation``) are not restored.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp

from pmapx._src import fastpath
from pmapx._src.legacy import removed_functions
from pmapx._src.legacy.patches import Bindings, current

_HERE = "pmapx._src.legacy.removed_functions."
NAMES: dict[str, str] = {
    **{
        f"jax.tree_{name}": f"jax.tree_util.tree_{name}"
        for name in ("all", "flatten", "leaves", "map", "reduce", "structure", "transpose")
    },
    "jax.tree_unflatten": "jax.tree_util.tree_unflatten",
    "jax.tree_multimap": "jax.tree_util.tree_map",
    "jax.tree_util.tree_multimap": "jax.tree_util.tree_map",
    "jax.treedef_children": "jax.tree_util.treedef_children",
    "jax.treedef_is_leaf": "jax.tree_util.treedef_is_leaf",
    "jax.treedef_tuple": "jax.tree_util.treedef_tuple",
    "jax.host_count": "jax.process_count",
    "jax.host_id": "jax.process_index",
    "jax.host_ids": "jax.process_indices",
    "jax.partial": "functools.partial",
    "jax.soft_pmap": _HERE + "soft_pmap",
    "jax.clear_backends": "jax.extend.backend.clear_backends",
    "jax.ShapedArray": "jax.core.ShapedArray",
    "jax.core.axis_frame": _HERE + "axis_frame",
    "jax.core.get_aval": "jax.typeof",
    "jax.core.raise_to_shaped": _HERE + "raise_to_shaped",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.enable_x64": "jax.enable_x64",
    "jax.experimental.disable_x64": _HERE + "disable_x64",
    "jax.interpreters.pxla.Mesh": "jax.sharding.Mesh",
    "jax.interpreters.pxla.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.interpreters.pxla.ShardedDeviceArray": _HERE + "ShardedDeviceArray",
    "jax.interpreters.xla.DeviceArray": "jax.Array",
    "jax.lax.pvary": _HERE + "pvary",
    "jax.lax.tie_in": _HERE + "tie_in",
    "jax.lax.zeros_like_array": "jax.numpy.zeros_like",
    "jax.nn.normalize": "jax.nn.standardize",
    "jax.numpy.DeviceArray": "jax.Array",
    "jax.numpy.alltrue": "jax.numpy.all",
    "jax.numpy.asscalar": _HERE + "asscalar",
    "jax.numpy.cumproduct": "jax.numpy.cumprod",
    "jax.numpy.fix": "jax.numpy.trunc",
    "jax.numpy.in1d": _HERE + "in1d",
    "jax.numpy.issubsctype": "jax.numpy.issubdtype",
    "jax.numpy.msort": _HERE + "msort",
    "jax.numpy.product": "jax.numpy.prod",
    "jax.numpy.round_": "jax.numpy.round",
    "jax.numpy.row_stack": "jax.numpy.vstack",
    "jax.numpy.sometrue": "jax.numpy.any",
    "jax.numpy.trapz": "jax.numpy.trapezoid",
    **{
        f"jax.ops.index{name}": _HERE + f"index{name}"
        for name in ("", "_add", "_max", "_min", "_mul", "_update")
    },
    "jax.random.KeyArray": "jax.Array",
    "jax.random.PRNGKeyArray": _HERE + "PRNGKeyArray",
    "jax.random.shuffle": _HERE + "shuffle",
    "jax.sharding.MeshPspecSharding": "jax.sharding.NamedSharding",
    "jax.sharding.XLACompatibleSharding": "jax.sharding.Sharding",
    "jax.sharding.use_mesh": "jax.set_mesh",
    # For custom primitives.
    **{
        f"jax.core.{name}": f"jax.extend.core.{name}"
        for name in vars(jax.extend.core)
        if not name.startswith("_") and name not in ("primitives", "annotations")
    },
}
"""Each removed name, and its equivalent today."""

LATER = {
    "jax.experimental.pjit": {
        "PartitionSpec": "jax.sharding.PartitionSpec",
        "with_sharding_constraint": "jax.lax.with_sharding_constraint",
    },
    "jax.lib.xla_bridge": {"get_backend": "jax.extend.backend.get_backend"},
}
"""The same for modules that JAX imports lazily."""

MODULES: dict[str, str | dict[str, str]] = {
    "jax.abstract_arrays": {
        "ShapedArray": "jax.core.ShapedArray",
        "raise_to_shaped": _HERE + "raise_to_shaped",
    },
    "jax.api": "jax",
    "jax.config": {"config": "jax.config"},
    "jax.experimental.maps": {"Mesh": "jax.sharding.Mesh"},
    "jax.experimental.optimizers": "jax.example_libraries.optimizers",
    "jax.experimental.stax": "jax.example_libraries.stax",
    "jax.lib.xla_bridge": {
        "get_backend": "jax.extend.backend.get_backend",
        **{
            name: f"jax.{name}"
            for name in ("default_backend", "device_count", "devices", "local_device_count")
            + ("local_devices", "process_count", "process_index", "host_count", "host_id")
        },
    },
    "jax.linear_util": "jax.extend.linear_util",
    "jax.numpy.lax_numpy": "jax.numpy",
    "jax.util": {
        "partial": "functools.partial",
        **{name: _HERE + f"{name}" for name in ("safe_map", "safe_zip", "split_list", "unzip2")},
    },
}
"""Each removed module, and its replacement, or the equivalent of each of its names."""


def restore(bindings: Bindings) -> None:
    """Restores every name of the tables that this release of JAX does not have."""
    for name, source in NAMES.items():
        module, _, attribute = name.rpartition(".")
        owner = sys.modules.get(module)
        if owner is not None:
            _bind(bindings, owner, attribute, source, name)
    for name, contents in MODULES.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            bindings.add_module(name, _RemovedModule(name, contents))
    _arguments(bindings)
    _config(bindings)
    _arrays(bindings)


def restore_in(bindings: Bindings, module: types.ModuleType) -> None:
    for attribute, source in LATER[module.__name__].items():
        _bind(bindings, module, attribute, source, f"{module.__name__}.{attribute}")


def _bind(bindings: Bindings, owner: Any, attribute: str, source: str, name: str) -> None:
    if current(owner, attribute) is not None:
        return
    try:
        value = _find(source)
    except (AttributeError, ImportError):
        return  # This release has renamed it again.
    bindings.set(owner, attribute, value, name)


def _arguments(bindings: Bindings) -> None:
    with_old_keywords = removed_functions.with_old_keywords
    if "a_min" not in inspect.signature(jnp.clip).parameters:
        clip = with_old_keywords(jnp.clip, {"a_min": "min", "a_max": "max"}, first="a")
        bindings.set(jnp, "clip", clip, "jax.numpy.clip, for a_min and a_max")
    if "newshape" not in inspect.signature(jnp.reshape).parameters:
        reshape = with_old_keywords(jnp.reshape, {"newshape": "shape"})
        bindings.set(jnp, "reshape", reshape, "jax.numpy.reshape, for newshape")


def _config(bindings: Bindings) -> None:
    kind = type(jax.config)
    members: dict[str, Any] = {
        "config": property(lambda config: config),
        "omnistaging_enabled": True,
        "enable_omnistaging": lambda config: None,
    }
    for attribute, value in members.items():
        if not hasattr(kind, attribute):
            bindings.set(kind, attribute, value, f"jax.config.{attribute}")


def _arrays(bindings: Bindings) -> None:
    # JAX defines these too, but they raise.
    array = fastpath.array_type()
    buffers = property(lambda x: [shard.data for shard in x.addressable_shards])
    bindings.set(array, "device_buffers", buffers, "jax.Array.device_buffers")
    buffer = property(lambda x: x.addressable_data(0))
    bindings.set(array, "device_buffer", buffer, "jax.Array.device_buffer")


class _RemovedModule(types.ModuleType):
    """A removed module; its names are looked up on access."""

    def __init__(self, name: str, contents: str | Mapping[str, str]) -> None:
        super().__init__(name, f"The removed module {name}, restored by pmapx.")
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__dict__["_contents"] = contents

    def __getattr__(self, name: str) -> Any:
        contents = self.__dict__["_contents"]
        source = f"{contents}.{name}" if isinstance(contents, str) else contents.get(name)
        if source is not None and not name.startswith("__"):
            try:
                return _find(source)
            except AttributeError:
                pass
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        contents = self.__dict__["_contents"]
        return dir(importlib.import_module(contents)) if isinstance(contents, str) else [*contents]


def _find(source: str) -> Any:
    module, _, attribute = source.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
