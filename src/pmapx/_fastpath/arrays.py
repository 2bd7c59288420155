"""Arrays made in one call into C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pmapx._fastpath import private
from pmapx.describe import Abstract


def array_type() -> Any:
    """Returns the class of JAX's concrete arrays."""
    return private.native.ArrayImpl if private.HAS_ARRAYS else type(jax.device_put(0))


def uncommitted(x: jax.Array) -> jax.Array:
    """Returns an array on one device, not committed to it: it may meet arrays of others."""
    if private.HAS_ARRAYS:
        array: jax.Array = private.native.ArrayImpl(
            x.aval, x.sharding, [x], committed=False, _skip_checks=True
        )
        return array
    (device,) = x.devices()
    host = np.array(x)
    with jax.default_device(device):
        return jax.device_put(host.item() if x.weak_type and not x.ndim else host)


def weakly_typed(x: jax.Array) -> jax.Array:
    """Returns an array whose type gives way to others, as that of a Python number does."""
    if not private.HAS_ARRAYS:
        return x  # Only what a program makes of Python's numbers is weakly typed.
    aval = x.aval.update(weak_type=True)
    shards = [shard.data for shard in x.addressable_shards]
    array: jax.Array = private.native.ArrayImpl(
        aval, x.sharding, shards, committed=True, _skip_checks=True
    )
    return array


def put_rows(rows: Sequence[Any], kind: Abstract, wanted: NamedSharding) -> jax.Array:
    """Puts rows, each with a leading axis of 1, on the devices of this process in ``wanted``.

    They are numpy's, or of one device. ``kind`` is the shape and type of the whole.
    """
    devices = [
        device for device in wanted.mesh.devices.flat if device in wanted.addressable_devices
    ]
    if private.HAS_ARRAYS:
        whole = private.core.ShapedArray(kind.shape, kind.dtype, weak_type=kind.weak_type)
        array: jax.Array = private.pxla.batched_device_put(whole, wanted, rows, devices)
        return array
    if kind.weak_type and len(kind.shape) == 1 and wanted.is_fully_addressable:
        # Only what a program makes of Python's numbers is weakly typed.
        numbers = [np.asarray(row).item() for row in rows]
        return jax.jit(lambda *xs: jnp.stack(xs), out_shardings=wanted)(*numbers)
    parts = jax.device_put(list(rows), devices)
    return jax.make_array_from_single_device_arrays(kind.shape, wanted, parts)
