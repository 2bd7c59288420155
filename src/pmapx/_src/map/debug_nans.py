"""``jax.debug_nans`` and ``jax.debug_infs``: finds the user's operation at fault.

A compiled program shows only that its result has a NaN. The mapped body then runs again as a batch,
operation by operation, so that JAX's own check finds the first one that makes it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.mesh.context_mesh import without_context_mesh
from pmapx._src.spmd import nesting
from pmapx._src.spmd.mapped_body import vmapped
from pmapx._src.trees.signature import Call


def checked(builder: ProgramBuilder, call: Call, run: Callable[[], Any]) -> Any:
    """Returns what ``run`` returns; raises FloatingPointError at the operation at fault."""
    donated = builder.donated(call.signature)
    kept = [
        jnp.copy(leaf) if is_donated and isinstance(leaf, jax.Array) else leaf
        for leaf, is_donated in zip(call.leaves, donated, strict=True)
    ]
    with jax.debug_nans(False), jax.debug_infs(False):
        result = run()
    found = next(filter(None, map(_special, jax.tree.leaves(result))), None)
    if found is None:
        return result
    # Outside of any handler, so that no other error precedes the user's.
    _run_by_operation(builder, call, kept)
    raise FloatingPointError(
        f"Invalid value ({found}) encountered in parallel computation: in the result of "
        f"{builder.function}, though no single operation of it made one."
    )


def _special(leaf: Any) -> str | None:
    """Returns "nan" or "inf" if an array has one that JAX is set to check for."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return None
    wide = np.complex128 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else np.float64
    for shard in leaf.addressable_shards:
        values = np.asarray(jax.device_get(shard.data)).astype(wide)
        if jax.config.jax_debug_nans and np.isnan(values).any():  # type: ignore[attr-defined]
            return "nan"
        if jax.config.jax_debug_infs and np.isinf(values).any():  # type: ignore[attr-defined]
            return "inf"
    return None


def _run_by_operation(builder: ProgramBuilder, call: Call, leaves: list[Any]) -> None:
    """Runs the mapped body as a batch on one device, for JAX to check each operation."""
    axis = dataclasses.replace(builder.resolve(call.signature).outermost, out_axes=0)
    body = builder.body(call.signature)
    # Without a result: placing its axes would add operations of our own.
    silent = dataclasses.replace(body, call=lambda *a, **k: [body.call(*a, **k)][:0])
    # Without mesh axes for them, pmaps in the body run as batches too.
    batched = vmapped(nesting.inside(nesting.Level(axis.name), silent), axis)
    device = builder.devices()[0]
    with without_context_mesh(), jax.default_device(device):
        gathered = [jax.device_put(leaf, device) for leaf in leaves]
        try:
            batched(*gathered)
        except FloatingPointError:
            raise
        except Exception:
            return  # It cannot run as a batch: the caller raises without the operation.
