"""Host-local arrays as global ones and back, under ``grad`` and ``vmap``.

Outside of ``jit``, transformations of JAX see host-local arrays. JAX differentiates and batches a
multi-process pmap of global arguments; the conversions before and after it are two linear
operations, each the transpose of the other, that copy nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.sharding import NamedSharding, PartitionSpec

from pmapx._src.multihost import host_local

_to_global = Primitive("pmapx_to_global")
_to_local = Primitive("pmapx_to_local")


def to_global(x: Any, sharding: NamedSharding) -> Any:
    """Returns the global array of host-local ``x``, which may be a tracer."""
    if isinstance(x, jax.core.Tracer):
        return _to_global.bind(x, sharding=sharding)
    return host_local.to_global(x, sharding)


def to_local(x: Any, sharding: NamedSharding) -> Any:
    """Returns the host-local array of a global one, which may be a tracer."""
    if isinstance(x, jax.core.Tracer):
        return _to_local.bind(x, sharding=sharding)
    return host_local.to_local(x, sharding)


def _run_to_local(x: Any, *, sharding: NamedSharding) -> Any:
    if not host_local.is_global(x):
        # JAX makes some cotangents, such as zeros, in each process.
        return jax.device_put(_own_part(x, sharding), host_local.local_sharding(sharding))
    return host_local.to_local(host_local.to_global(x, sharding), sharding)


def _own_part(x: Any, sharding: NamedSharding) -> Any:
    """Returns this process's slice of an array that every process has."""
    here: Any = sharding.addressable_devices_indices_map(np.shape(x)).values()
    part = []
    for dimension, size in enumerate(np.shape(x)):
        bounds = [index[dimension].indices(size)[:2] for index in here]
        part.append(slice(min(low for low, _ in bounds), max(high for _, high in bounds)))
    return x[tuple(part)]


_to_global.def_impl(lambda x, *, sharding: host_local.to_global(x, sharding))
_to_global.def_abstract_eval(
    lambda x, *, sharding: x.update(shape=host_local.global_shape(x.shape, sharding))
)
_to_local.def_impl(_run_to_local)
_to_local.def_abstract_eval(
    lambda x, *, sharding: x.update(shape=host_local.local_shape(x.shape, sharding))
)


def _add_rules(primitive: Primitive, transposed: Primitive) -> None:
    def transpose(cotangent: Any, x: Any, *, sharding: NamedSharding) -> list[Any]:
        if type(cotangent) is ad.Zero:
            return [ad.Zero(x.aval)]
        return [transposed.bind(cotangent, sharding=sharding)]

    def batch(args: Any, dimensions: Any, *, sharding: NamedSharding) -> tuple[Any, int]:
        (x,), (dimension,) = args, dimensions
        # In front, so that it does not shift what the spec names.
        x = jnp.moveaxis(x, dimension, 0)
        spec = PartitionSpec(None, *sharding.spec)
        return primitive.bind(x, sharding=NamedSharding(sharding.mesh, spec)), 0

    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = batch


_add_rules(_to_global, _to_local)
_add_rules(_to_local, _to_global)
