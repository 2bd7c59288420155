"""The only room with a door to ``jax._src``.

Each piece here is looked for at import, has a public twin, and both are tested.
``PMAPX_PUBLIC_ONLY=1`` keeps the doors shut. What the pieces are for:

- ``dispatcher``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a
  signature that it has not seen. The twin calls that handler each time.
- ``trace_context``: the settings that a traced program depends on. The twin reads ``jax.config``.
- ``is_staging``: whether something is being traced. The twin tries what JAX refuses then.
- ``array_type``: the class of concrete arrays. The twin makes one, which starts the devices.
- ``put_rows``: an array made of rows that go to a device each. The twin puts them one by one.
- ``uncommitted``: an array that may be used with arrays of other devices. The twin copies it by way
  of the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pmapx.describe import Abstract
from pmapx.placement import NO_MESH

_PUBLIC_ONLY = os.environ.get("PMAPX_PUBLIC_ONLY", "") not in ("", "0")

try:
    if _PUBLIC_ONLY:
        raise ImportError("PMAPX_PUBLIC_ONLY is set")
    from jax._src import config as _config
    from jax._src import core as _core
    from jax._src import dtypes as _dtypes
    from jax._src import sharding_impls as _sharding_impls
    from jax._src import tree_util as _tree_util
    from jax._src.interpreters import pxla as _pxla
    from jax._src.lib import _jax as _native  # type: ignore[attr-defined]

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
        _pxla.MeshExecutableFastpathData._fields == _FASTPATH_FIELDS
        and callable(_native.pjit)
        and isinstance(_native.ArrayImpl, type)
        and callable(_pxla.reflatten_outputs_for_dispatch)
        and callable(_pxla.cc_shard_arg)
        and callable(_pxla.JitGlobalCppCacheKeys)
        and hasattr(_tree_util, "dispatch_registry")
        and callable(_sharding_impls.physical_sharding)
    )
    HAS_TRACE_CONTEXT = callable(_config.trace_context)
    HAS_TRACE_STATE = callable(_core.trace_state_clean)
    HAS_ARRAYS = isinstance(_native.ArrayImpl, type) and callable(_pxla.batched_device_put)
except (ImportError, AttributeError):
    HAS_DISPATCH = HAS_TRACE_CONTEXT = HAS_TRACE_STATE = HAS_ARRAYS = False


def trace_context() -> Hashable:
    """Returns what a traced program depends on beside its arguments and the mesh around it."""
    if HAS_TRACE_CONTEXT:
        with jax.set_mesh(NO_MESH):
            context: Hashable = _config.trace_context()
        return context
    return tuple(map(repr, jax.config.values.values()))


def is_staging() -> bool:
    """Says whether something is being traced here, so that a call is to be recorded, not run."""
    if HAS_TRACE_STATE:
        return not _core.trace_state_clean()
    try:
        with jax.set_mesh(NO_MESH):  # Refused wherever something is being traced.
            return False
    except ValueError:
        return True


def takes_as_placed(x: jax.Array, mesh: jax.sharding.Mesh) -> bool:
    """Says whether the dispatch would take ``x`` for one of the mesh's own, without a look.

    It tells a misplaced array by its number of devices, so one with the same number must not come
    to it: a program would run on shards of another shape. Only a single device is looked at.
    """
    return len(x.sharding.device_set) == mesh.size > 1


def array_type() -> Any:
    """Returns the class of JAX's concrete arrays."""
    return _native.ArrayImpl if HAS_ARRAYS else type(jax.device_put(0))


def uncommitted(x: jax.Array) -> jax.Array:
    """Returns an array on one device, not committed to it: it may meet arrays of others."""
    if HAS_ARRAYS:
        array: jax.Array = _native.ArrayImpl(
            x.aval, x.sharding, [x], committed=False, _skip_checks=True
        )
        return array
    (device,) = x.devices()
    host = np.array(x)
    with jax.default_device(device):
        return jax.device_put(host.item() if x.weak_type and not x.ndim else host)


def put_rows(rows: Sequence[Any], kind: Abstract, wanted: NamedSharding) -> jax.Array:
    """Puts rows, each with a leading axis of 1, on the devices of this process in ``wanted``.

    They are numpy's, or of one device. ``kind`` is the shape and type of the whole.
    """
    devices = [
        device for device in wanted.mesh.devices.flat if device in wanted.addressable_devices
    ]
    if HAS_ARRAYS:
        whole = _core.ShapedArray(kind.shape, kind.dtype, weak_type=kind.weak_type)
        array: jax.Array = _pxla.batched_device_put(whole, wanted, rows, devices)
        return array
    if kind.weak_type and len(kind.shape) == 1 == jax.process_count():
        # Only what a program makes of Python's numbers is weakly typed.
        numbers = [np.asarray(row).item() for row in rows]
        return jax.jit(lambda *xs: jnp.stack(xs), out_shardings=wanted)(*numbers)
    parts = jax.device_put(list(rows), devices)
    return jax.make_array_from_single_device_arrays(kind.shape, wanted, parts)


class Dispatcher:
    """Calls a compiled program by the call's signature; asks ``on_unseen`` for a new one.

    ``on_unseen(*args, **kwargs)`` runs the call and returns its result and the program that did
    it, or None for a program when the next such call should come to it again. ``on_misplaced`` is
    given an array that a program may need elsewhere, and where; it returns it moved, or None to
    leave that to the dispatch.
    """

    def __init__(
        self,
        name: str,
        static_argnums: Sequence[int],
        on_unseen: Callable[..., tuple[Any, jax.stages.Compiled | None]],
        on_misplaced: Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None],
        run_eagerly: Callable[..., Any],
    ) -> None:
        """Makes the callable ``call``."""
        if not HAS_DISPATCH:
            self.call: Callable[..., Any] = lambda *args, **kwargs: on_unseen(*args, **kwargs)[0]
            return

        def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            result, compiled = on_unseen(*args, **kwargs)
            data = None if compiled is None else _fastpath_data(compiled, result)
            return result, data, False

        def shard_argument(x: Any, sharding: Any, layout: Any) -> Any:
            moved = on_misplaced(x, sharding) if isinstance(x, jax.Array) else None
            return _pxla.cc_shard_arg(x, sharding, layout) if moved is None else moved

        self.call = _native.pjit(
            name,
            run_eagerly,
            on_cache_miss,
            list(static_argnums),
            [],
            _pxla.JitGlobalCppCacheKeys(),
            _tree_util.dispatch_registry,
            shard_argument,
        )
        # Where a check for NaNs turns to find the operation that is to blame.
        self.call._fun = run_eagerly  # type: ignore[attr-defined]

    def clear(self) -> None:
        """Forgets every signature."""
        if HAS_DISPATCH:
            self.call._clear_cache()  # type: ignore[attr-defined]


def _fastpath_data(compiled: jax.stages.Compiled, result: Any) -> Any:
    """Returns what the C++ dispatch needs to run ``compiled`` by itself, or None if it cannot."""
    executable: Any = compiled._executable
    parameters: Any = compiled._params
    call = getattr(executable, "unsafe_call", None)
    if (
        not isinstance(call, _pxla.ExecuteReplicated)
        or call.has_unordered_effects
        or call.has_host_callbacks
        or call.ordered_effects
        or parameters.is_high
        or executable._mut
        or _config.debug_nans.value
        or _config.debug_infs.value
    ):
        return None
    out_leaves, out_tree = _pxla.reflatten_outputs_for_dispatch(
        compiled.out_tree, jax.tree.leaves(result)
    )
    if not all(isinstance(leaf, _native.ArrayImpl) for leaf in out_leaves):
        return None
    const_args = parameters.const_args
    if hasattr(executable, "shard_const_args"):
        const_args = executable.shard_const_args(const_args)
    argument_count = len(const_args) + len(jax.tree.leaves(compiled.in_avals))

    def physical(shardings: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        return [
            _sharding_impls.physical_sharding(aval, sharding)
            if aval is not _core.abstract_token and _dtypes.issubdtype(aval.dtype, _dtypes.extended)
            else sharding
            for sharding, aval in zip(shardings, avals, strict=True)
        ]

    return _pxla.MeshExecutableFastpathData(
        executable.xla_executable,
        out_tree,
        physical(executable._in_shardings, executable.in_avals),
        [leaf.sharding for leaf in out_leaves],
        [leaf.aval for leaf in out_leaves],
        [leaf.committed for leaf in out_leaves],
        [index in executable._kept_var_idx for index in range(argument_count)],
        executable._dispatch_in_layouts,
        const_args,
    )
