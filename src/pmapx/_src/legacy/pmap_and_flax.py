"""Replacing ``jax.pmap``, ``jax.device_put_*`` and functions of Flax with those of pmapx."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapx._src.arrays.device_put import (
    device_put_replicated,
    device_put_sharded,
    prefetch,
    replicate,
    shard_batch,
)
from pmapx._src.arrays.local_shards import unreplicate
from pmapx._src.legacy.patches import Bindings, current
from pmapx._src.map.pmap import pmap


def replace_in_jax(bindings: Bindings, oversubscribe: bool, originals: dict[str, Any]) -> None:
    """Replaces ``jax.pmap`` and the two removed functions, also where modules imported them.

    ``originals`` keeps JAX's own for later calls, when more modules may be imported.
    """
    replacements = {
        "pmap": _oversubscribing() if oversubscribe else pmap,
        "device_put_replicated": device_put_replicated,
        "device_put_sharded": device_put_sharded,
    }
    for name, ours in replacements.items():
        if name not in originals:
            theirs = current(jax, name)
            package = str(getattr(theirs, "__module__", "")).partition(".")[0]
            if theirs is not None and package != "jax":
                continue  # Someone else's patch, such as a fake for debugging.
            originals[name] = theirs
            bindings.set(jax, name, ours, f"jax.{name}")
        if originals[name] is not None:
            bindings.replace_everywhere(originals[name], vars(jax)[name])


def _oversubscribing() -> Callable[..., Any]:
    @functools.wraps(pmap)
    def oversubscribing_pmap(*args: Any, **kwargs: Any) -> Any:
        return pmap(*args, **{"oversubscribe": True, **kwargs})

    return oversubscribing_pmap


# With the parameters that we expect. Newer releases of Flax add axis_name; a call that passes it is
# left to Flax.
FLAX: dict[str, dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {
    "flax.jax_utils": {
        "replicate": (replicate, ("tree", "devices")),
        "unreplicate": (unreplicate, ("tree",)),
        "prefetch_to_device": (prefetch, ("iterator", "size", "devices")),
    },
    "flax.training.common_utils": {"shard": (shard_batch, ("xs",))},
}


def replace_in_flax(bindings: Bindings, module: types.ModuleType) -> None:
    """Replaces the functions of a Flax module, also where other modules imported them."""
    for name, (fast, parameters) in FLAX[module.__name__].items():
        theirs = vars(module).get(name)
        if not isinstance(theirs, types.FunctionType) or theirs.__module__ != module.__name__:
            continue
        found = inspect.signature(theirs).parameters
        if tuple(name for name in found if name != "axis_name") != parameters:
            continue
        ours = _or_theirs(fast, theirs, parameters)
        bindings.set(module, name, ours, f"{module.__name__}.{name}")
        bindings.replace_everywhere(theirs, ours)


def _or_theirs(
    fast: Callable[..., Any], theirs: Callable[..., Any], parameters: tuple[str, ...]
) -> Callable[..., Any]:
    """Returns a function that calls ``fast`` if it supports the arguments, and Flax's otherwise."""
    signature = inspect.signature(theirs)
    is_supported = _is_stacked if fast is unreplicate else _is_array

    @functools.wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if all(name in parameters for name in bound.arguments) and (
            fast is prefetch or all(is_supported(leaf) for leaf in jax.tree.leaves(bound.args[0]))
        ):
            return fast(*bound.args)
        return theirs(*args, **kwargs)

    return function


def _is_array(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind not in "OSUMm"
    if isinstance(x, jax.core.Tracer):
        return False
    return isinstance(x, jax.Array | bool | int | float | complex)


def _is_stacked(x: Any) -> bool:
    return _is_array(x) and np.ndim(x) > 0
