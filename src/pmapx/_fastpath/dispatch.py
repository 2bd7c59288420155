"""JAX's C++ dispatch, the one behind ``jax.jit``, around pmapx's own programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from pmapx._fastpath import private


def takes_as_placed(x: jax.Array, *meshes: jax.sharding.Mesh) -> bool:
    """Says whether the dispatch would take ``x`` for one of the mesh's own, without a look.

    It tells a misplaced array by its number of devices, so one with the same number must not come
    to it: a program would run on shards of another shape. Only a single device is looked at.
    """
    return any(len(x.sharding.device_set) == mesh.size > 1 for mesh in meshes)


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
        on_unseen: Callable[..., tuple[Any, Repeatable]],
        on_misplaced: Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None],
        run_eagerly: Callable[..., Any],
    ) -> None:
        """Makes the callable ``call``."""
        if not private.HAS_DISPATCH:
            self.call: Callable[..., Any] = lambda *args, **kwargs: on_unseen(*args, **kwargs)[0]
            return

        def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            result, program = on_unseen(*args, **kwargs)
            data = None if program is None else fastpath_data(program, result)
            return result, data, False

        array_type = private.native.ArrayImpl

        def shard_argument(x: Any, sharding: Any, layout: Any) -> Any:
            # Host-local arrays come here each time: JAX counts the devices of all processes.
            if type(x) is array_type and x.sharding is sharding and layout is None:
                return x
            moved = on_misplaced(x, sharding) if isinstance(x, jax.Array) else None
            return private.pxla.cc_shard_arg(x, sharding, layout) if moved is None else moved

        self.call = make_dispatch(name, static_argnums, on_cache_miss, shard_argument, run_eagerly)
        # Where a check for NaNs turns to find the operation that is to blame.
        self.call._fun = run_eagerly  # type: ignore[attr-defined]

    def clear(self) -> None:
        """Forgets every signature."""
        if private.HAS_DISPATCH:
            self.call._clear_cache()  # type: ignore[attr-defined]


def make_dispatch(
    name: str,
    static_argnums: Sequence[int],
    on_cache_miss: Callable[..., tuple[Any, Any, bool]],
    shard_argument: Callable[[Any, Any, Any], Any],
    run_eagerly: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns JAX's C++ dispatch around these handlers."""
    dispatch: Callable[..., Any] = private.native.pjit(
        name,
        run_eagerly,
        on_cache_miss,
        list(static_argnums),
        [],
        private.pxla.JitGlobalCppCacheKeys(),
        private.tree_util.dispatch_registry,
        shard_argument,
    )
    return dispatch


@dataclasses.dataclass(frozen=True, eq=False)
class LocalProgram:
    """A program over shards that spans processes, as this process runs it.

    Attributes:
      compiled: the program of all processes.
      devices: this process's devices, in the order of its mesh.
      in_shardings: where host-local inputs lie.
    """

    compiled: jax.stages.Compiled
    devices: tuple[jax.Device, ...]
    in_shardings: tuple[NamedSharding, ...]

    @functools.cached_property
    def executable(self) -> Any:
        """The executable, loaded anew so that its arrays lie on this process's devices."""
        executable: Any = self.compiled._executable
        client = executable.xla_executable.client
        serialized = client.serialize_executable(executable.xla_executable)
        return client.deserialize_executable(
            serialized, private.native.DeviceList(self.devices), None
        )


Repeatable = jax.stages.Compiled | LocalProgram | None


def fastpath_data(program: jax.stages.Compiled | LocalProgram, result: Any) -> Any:
    """Returns what the C++ dispatch needs to run ``program`` by itself, or None if it cannot."""
    is_local = isinstance(program, LocalProgram)
    compiled = program.compiled if isinstance(program, LocalProgram) else program
    executable: Any = compiled._executable
    parameters: Any = compiled._params
    call = getattr(executable, "unsafe_call", None)
    if (
        not isinstance(call, private.pxla.ExecuteReplicated)
        or call.has_unordered_effects
        or call.has_host_callbacks
        or call.ordered_effects
        or parameters.is_high
        or executable._mut
        or private.config.debug_nans.value
        or private.config.debug_infs.value
    ):
        return None
    out_leaves, out_tree = private.pxla.reflatten_outputs_for_dispatch(
        compiled.out_tree, jax.tree.leaves(result)
    )
    if not all(isinstance(leaf, private.native.ArrayImpl) for leaf in out_leaves):
        return None
    const_args = parameters.const_args
    if hasattr(executable, "shard_const_args"):
        const_args = executable.shard_const_args(const_args)
    if is_local and const_args:
        return None  # They lie on the devices of all processes.
    argument_count = len(const_args) + len(jax.tree.leaves(compiled.in_avals))

    def physical(shardings: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        return [
            private.sharding_impls.physical_sharding(aval, sharding)
            if aval is not private.core.abstract_token
            and private.dtypes.issubdtype(aval.dtype, private.dtypes.extended)
            else sharding
            for sharding, aval in zip(shardings, avals, strict=True)
        ]

    xla_executable, in_shardings = executable.xla_executable, executable._in_shardings
    if isinstance(program, LocalProgram):
        kept = [program.in_shardings[index] for index in sorted(executable._kept_var_idx)]
        xla_executable, in_shardings = program.executable, kept

    return private.pxla.MeshExecutableFastpathData(
        xla_executable,
        out_tree,
        physical(in_shardings, executable.in_avals),
        [leaf.sharding for leaf in out_leaves],
        [leaf.aval for leaf in out_leaves],
        [leaf.committed for leaf in out_leaves],
        [index in executable._kept_var_idx for index in range(argument_count)],
        executable._dispatch_in_layouts,
        const_args,
    )
