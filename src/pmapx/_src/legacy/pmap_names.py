"""The names that pmapx takes over, and what each is replaced by."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapx._src.arrays.device_put import (
    device_put_replicated,
    device_put_sharded,
    replicate,
    shard_batch,
)
from pmapx._src.arrays.local_shards import unreplicate
from pmapx._src.arrays.prefetch import prefetch
from pmapx._src.legacy.patches import Bindings
from pmapx._src.map.pmap import pmap


def take_over_jax(bindings: Bindings, oversubscribe: bool, originals: dict[str, Any]) -> None:
    """Binds ``jax.pmap`` and the two removed functions, and every copy that modules hold.

    ``originals`` remembers what was there, for when it is called again: modules may have been
    imported since.
    """
    replacements = {
        "pmap": _oversubscribing() if oversubscribe else pmap,
        "device_put_replicated": device_put_replicated,
        "device_put_sharded": device_put_sharded,
    }
    for name, ours in replacements.items():
        if name not in originals:
            theirs = _attribute(jax, name)
            if theirs is not None and not _is_of(theirs, "jax"):
                continue  # Somebody else's, such as a fake for debugging.
            originals[name] = theirs
            bindings.set(jax, name, ours, f"jax.{name}")
        if originals[name] is not None:
            bindings.replace_everywhere(originals[name], vars(jax)[name])


def _oversubscribing() -> Callable[..., Any]:
    @functools.wraps(pmap)
    def oversubscribing_pmap(*args: Any, **kwargs: Any) -> Any:
        return pmap(*args, **{"oversubscribe": True, **kwargs})

    return oversubscribing_pmap


def _attribute(module: types.ModuleType, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(module, name, None)


def _is_of(value: Any, package: str) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == package


# Each with the parameters that it must have to be the function we know. Newer releases of Flax have
# an axis_name besides; a call that gives one is left to Flax.
FLAX: dict[str, dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {
    "flax.jax_utils": {
        "replicate": (replicate, ("tree", "devices")),
        "unreplicate": (unreplicate, ("tree",)),
        "prefetch_to_device": (prefetch, ("iterator", "size", "devices")),
    },
    "flax.training.common_utils": {"shard": (shard_batch, ("xs",))},
}


def take_over_flax(bindings: Bindings, module: types.ModuleType) -> None:
    """Binds the functions of one module of Flax, and every copy that modules hold."""
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
    """Returns ``fast`` for what it takes; traced and other leaves, other options are Flax's."""
    signature = inspect.signature(theirs)
    is_for_us = _is_stacked if fast is unreplicate else _is_array

    @functools.wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if all(name in parameters for name in bound.arguments) and (
            fast is prefetch or all(is_for_us(leaf) for leaf in jax.tree.leaves(bound.args[0]))
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
