"""Which primitives are JAX's own, and so known to compute from their operands alone.

A primitive that a user or a library defines may do anything on a device: read the device's index,
call the host, communicate. A proof must not take it for arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import jax
from jax.extend.core import Primitive, primitives

# Computed from operands alone, and exported by no public module in some release of JAX 0.8 to 0.12.
_UNEXPORTED = frozenset(
    ["copy", "dim_as_value", "dimension_size", "eigh_jacobi", "from_edtype", "to_edtype"]
    + ["geqp3", "geqrf", "iota_2x32_shape", "layout_constraint", "relayout", "reshard", "name"]
    + ["philox2x32", "philox4x32", "threefry4x32", "platform_index", "ragged_dot_general"]
    + ["random_clone", "random_unwrap", "random_wrap", "scaled_dot", "tie", "xla_metadata_value"]
    + ["zeros_like"]
    # Waiting for a collective returns the result of its start.
    + ["all_gather_done", "all_to_all_done", "pbroadcast_done", "ppermute_done", "psum_done"]
    + ["reduce_scatter_done"]
)


def is_jaxs_own(primitive: Primitive, names: Collection[str] = ()) -> bool:
    """Whether JAX defines a primitive; ``names`` are of more that no public module exports.

    >>> is_jaxs_own(primitives.sin_p), is_jaxs_own(Primitive("sin"))
    (True, False)
    """
    exported = _exported()
    if primitive.name in exported:  # By identity: a user's primitive may have any name.
        return exported[primitive.name] is primitive
    return primitive.name in _UNEXPORTED or primitive.name in names


@functools.cache
def _exported() -> dict[str, Primitive]:
    modules = (primitives, jax.lax, jax.lax.linalg)
    values = (value for module in modules for value in vars(module).values())
    return {value.name: value for value in values if isinstance(value, Primitive)}
