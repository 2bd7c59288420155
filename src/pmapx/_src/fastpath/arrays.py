"""Arrays made in one call into C++."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pmapx._src.fastpath import jax_src
from pmapx._src.fastpath.probes import Piece, Unlike, check_alike
from pmapx._src.trees.names import Abstract


def array_type() -> Any:
    found = getattr(jax_src.native, "ArrayImpl", None)
    return found if isinstance(found, type) else type(jax.device_put(0))


def uncommitted(x: jax.Array) -> jax.Array:
    """Returns an array on one device, uncommitted: it may be used with arrays of others."""
    return _uncommitted(x) if ARRAYS.is_usable(x.sharding) else _uncommitted_twin(x)


def _uncommitted(x: jax.Array) -> jax.Array:
    return jax_src.native.ArrayImpl(x.aval, x.sharding, [x], committed=False, _skip_checks=True)


def _uncommitted_twin(x: jax.Array) -> jax.Array:
    (device,) = x.devices()
    host = np.array(x)
    with jax.default_device(device):
        return jax.device_put(host.item() if x.weak_type and not x.ndim else host)


def weakly_typed(x: jax.Array) -> jax.Array:
    """Returns an array of weak type, which promotes as a Python number does."""
    if not ARRAYS.is_usable(x.sharding):
        return x  # Public JAX makes weakly typed arrays of Python numbers only.
    return _weakly_typed(x)


def _weakly_typed(x: jax.Array) -> jax.Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax_src.native.ArrayImpl(
        x.aval.update(weak_type=True), x.sharding, shards, committed=True, _skip_checks=True
    )


def put_shards(shards: Sequence[Any], kind: Abstract, wanted: NamedSharding) -> jax.Array:
    """Puts one shard on each of this process's devices in ``wanted``.

    Each has a leading axis of size 1, and is a numpy array or on one device. ``kind`` is the shape
    and type of the result.
    """
    devices = [
        device for device in wanted.mesh.devices.flat if device in wanted.addressable_devices
    ]
    put = _put_shards if ARRAYS.is_usable(wanted) else _put_shards_twin
    return put(shards, kind, wanted, devices)


def _put_shards(
    shards: Sequence[Any], kind: Abstract, wanted: NamedSharding, devices: Sequence[jax.Device]
) -> jax.Array:
    aval = jax_src.core.ShapedArray(kind.shape, kind.dtype, weak_type=kind.weak_type)
    return jax_src.pxla.batched_device_put(aval, wanted, shards, devices)


def _put_shards_twin(
    shards: Sequence[Any], kind: Abstract, wanted: NamedSharding, devices: Sequence[jax.Device]
) -> jax.Array:
    if kind.weak_type and len(kind.shape) == 1 and wanted.is_fully_addressable:
        # Public JAX makes weakly typed arrays of Python numbers only.
        numbers = [np.asarray(shard).item() for shard in shards]
        return jax.jit(lambda *xs: jnp.stack(xs), out_shardings=wanted)(*numbers)
    parts = jax.device_put(list(shards), list(devices))
    return jax.make_array_from_single_device_arrays(kind.shape, wanted, parts)


def _probe_arrays(near: Sharding | None = None) -> None:
    """Makes a small array each way, on one device of ``near``."""
    local: Any = jax.local_devices() if near is None else near.addressable_devices
    device = min(local, key=lambda device: device.id)
    numbers = np.array([[1.5, -2.0]], np.float32)
    wanted = NamedSharding(Mesh(np.array([device]), ("i",)), PartitionSpec("i"))
    kind = Abstract(numbers.shape, numbers.dtype, False)
    put = _put_shards([numbers], kind, wanted, [device])
    check_alike(put, _put_shards_twin([numbers], kind, wanted, [device]))
    x = jax.device_put(numbers, device)
    check_alike(_uncommitted(x), _uncommitted_twin(x))
    weak = _weakly_typed(x)
    if jnp.result_type(weak, jnp.bfloat16) != jnp.bfloat16:
        raise Unlike("an array of weak type does not promote as a number does")
    if not np.array_equal(weak, numbers):
        raise Unlike(f"values {np.asarray(weak)} in place of {numbers}")


ARRAYS = Piece("arrays put in one call", _probe_arrays, "replicate and others take longer")
