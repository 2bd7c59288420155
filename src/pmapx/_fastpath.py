"""The only room with a door to ``jax._src``.

Each piece here is looked for at import, has a public twin, and both are tested.
``PMAPX_PUBLIC_ONLY=1`` keeps the doors shut. What the pieces are for:

- ``dispatcher``: JAX's C++ dispatch, the one behind ``jax.jit``, with pmapx's own handler for a
  signature that it has not seen. The twin calls that handler each time.
- ``is_staging``: whether something is being traced. The twin tries what JAX refuses then.
- ``array_type``: the class of concrete arrays. The twin makes one, which starts the devices.
- ``weakly_typed``: an array of weak type. The twin leaves its type as it is.
- ``put_rows``: an array made of rows that go to a device each. The twin puts them one by one.
- ``uncommitted``: an array that may be used with arrays of other devices. The twin copies it by way
  of the host.
- ``LocalProgram``: a program that spans processes, loaded for this process's devices alone, so
  that it takes and gives host-local arrays. ``RowsDispatcher``: one that runs on global arrays,
  whose results are seen as host-local ones. The twin stitches and takes apart each array.
- ``gloo_on_loopback``: the address that CPU collectives listen on. The twin leaves it to JAX.
- ``more_cpu_devices``: a second set of virtual CPU devices. The twin has those of JAX only.
- ``pmap_options``: what a function of ``jax.pmap`` was told. The twin knows pmapx's own only.
- ``_hide_frames``: tracebacks that JAX filters are without pmapx's frames too. The twin leaves
  them as they are.
- ``wait_for_all``: a barrier that knows who came. The twin waits for a collective.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx.describe import Abstract
from pmapx.hosts import local_sharding
from pmapx.placement import NO_MESH, neutral_context

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
    HAS_TRACE_STATE = callable(_core.trace_state_clean)
    HAS_ARRAYS = isinstance(_native.ArrayImpl, type) and callable(_pxla.batched_device_put)
    HAS_RELOAD = (
        HAS_DISPATCH
        and callable(_native.DeviceList)
        and callable(_native.Client.serialize_executable)
        and callable(_native.Client.deserialize_executable)
    )
    from jax._src import distributed as _distributed

    HAS_COORDINATION = (
        hasattr(_distributed.global_state, "client")
        and callable(_native.DistributedRuntimeClient.wait_at_barrier)
        and callable(_native.DistributedRuntimeClient.key_value_set)
        and callable(_native.DistributedRuntimeClient.key_value_dir_get)
    )
except (ImportError, AttributeError):
    HAS_DISPATCH = HAS_TRACE_STATE = False
    HAS_ARRAYS = HAS_RELOAD = HAS_COORDINATION = False
# Not in JAX 0.8, where results that cannot be made by a LocalProgram are taken apart in public.
CAN_REWRAP = HAS_DISPATCH and hasattr(_native.ArrayImpl, "_rewrap_with_aval_and_sharding")


def is_staging() -> bool:
    """Says whether something is being traced here, so that a call is to be recorded, not run."""
    if HAS_TRACE_STATE:
        return not _core.trace_state_clean()
    try:
        with jax.set_mesh(NO_MESH):  # Refused wherever something is being traced.
            return False
    except ValueError:
        return True


def takes_as_placed(x: jax.Array, *meshes: jax.sharding.Mesh) -> bool:
    """Says whether the dispatch would take ``x`` for one of the mesh's own, without a look.

    It tells a misplaced array by its number of devices, so one with the same number must not come
    to it: a program would run on shards of another shape. Only a single device is looked at.
    """
    return any(len(x.sharding.device_set) == mesh.size > 1 for mesh in meshes)


def gloo_on_loopback() -> None:
    """Lets CPU collectives of processes on one machine listen on loopback alone."""
    make = getattr(_native, "make_gloo_tcp_collectives", None) if HAS_ARRAYS else None
    if make is not None and "hostname" in (make.__doc__ or ""):
        _native.make_gloo_tcp_collectives = functools.partial(make, hostname="127.0.0.1")


def more_cpu_devices(count: int) -> tuple[jax.Device, ...] | None:
    """Returns virtual CPU devices beside those that JAX has; None when only JAX can make them.

    They belong to a client of their own, which lives as long as they do.
    """
    make = getattr(_native, "get_tfrt_cpu_client", None) if HAS_ARRAYS else None
    if make is None or "num_devices" not in (make.__doc__ or ""):
        return None
    return tuple(make(asynchronous=True, num_devices=count).devices())


def pmap_options(function: Any) -> dict[str, Any] | None:
    """Returns what ``jax.pmap`` was told when it made a function; None when it does not show.

    Without this, ``jax.pmap`` is known under ``install()`` alone.
    """
    if not HAS_ARRAYS or not isinstance(function, types.FunctionType):
        return None
    told = inspect.getclosurevars(function).nonlocals.get("infer_params")
    if not isinstance(told, types.FunctionType):
        return None
    seen = inspect.getclosurevars(told).nonlocals
    if not _PMAP_CLOSURE.issubset(seen):
        return None
    static = tuple(seen["static_broadcasted_tuple"])
    count = len(static) + 1 + max(seen["donate_tuple"], default=0)
    dynamic = [position for position in range(count) if position not in static]
    internal = seen["axis_name"] == "_internal_pmap_axis_name"
    return {
        "axis_name": None if internal else seen["axis_name"],
        "in_axes": seen["in_axes"],
        "out_axes": jax.tree.unflatten(seen["out_axes_tree"], seen["out_axes_flat"]),
        "static_argnums": static,
        "donated_argnums": tuple(dynamic[index] for index in seen["donate_tuple"]),
        "devices": seen["devices"],
        "backend": seen["backend"],
        "axis_size": seen["axis_size"],
    }


_PMAP_CLOSURE = {
    *("axis_name", "axis_size", "backend", "devices", "donate_tuple", "in_axes", "out_axes_flat"),
    *("out_axes_tree", "static_broadcasted_tuple"),
}


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


def weakly_typed(x: jax.Array) -> jax.Array:
    """Returns an array whose type gives way to others, as that of a Python number does."""
    if not HAS_ARRAYS:
        return x  # Only what a program makes of Python's numbers is weakly typed.
    aval = x.aval.update(weak_type=True)
    shards = [shard.data for shard in x.addressable_shards]
    array: jax.Array = _native.ArrayImpl(
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
    if HAS_ARRAYS:
        whole = _core.ShapedArray(kind.shape, kind.dtype, weak_type=kind.weak_type)
        array: jax.Array = _pxla.batched_device_put(whole, wanted, rows, devices)
        return array
    if kind.weak_type and len(kind.shape) == 1 and wanted.is_fully_addressable:
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
        on_unseen: Callable[..., tuple[Any, Repeatable]],
        on_misplaced: Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None],
        run_eagerly: Callable[..., Any],
    ) -> None:
        """Makes the callable ``call``."""
        if not HAS_DISPATCH:
            self.call: Callable[..., Any] = lambda *args, **kwargs: on_unseen(*args, **kwargs)[0]
            return

        def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            result, program = on_unseen(*args, **kwargs)
            data = None if program is None else _fastpath_data(program, result)
            return result, data, False

        array_type = _native.ArrayImpl

        def shard_argument(x: Any, sharding: Any, layout: Any) -> Any:
            # Host-local arrays come here each time: JAX counts the devices of all processes.
            if type(x) is array_type and x.sharding is sharding and layout is None:
                return x
            moved = on_misplaced(x, sharding) if isinstance(x, jax.Array) else None
            return _pxla.cc_shard_arg(x, sharding, layout) if moved is None else moved

        self.call = _dispatch(name, static_argnums, on_cache_miss, shard_argument, run_eagerly)
        # Where a check for NaNs turns to find the operation that is to blame.
        self.call._fun = run_eagerly  # type: ignore[attr-defined]

    def clear(self) -> None:
        """Forgets every signature."""
        if HAS_DISPATCH:
            self.call._clear_cache()  # type: ignore[attr-defined]


def _dispatch(
    name: str,
    static_argnums: Sequence[int],
    on_cache_miss: Callable[..., tuple[Any, Any, bool]],
    shard_argument: Callable[[Any, Any, Any], Any],
    run_eagerly: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns JAX's C++ dispatch around these handlers."""
    dispatch: Callable[..., Any] = _native.pjit(
        name,
        run_eagerly,
        on_cache_miss,
        list(static_argnums),
        [],
        _pxla.JitGlobalCppCacheKeys(),
        _tree_util.dispatch_registry,
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
        return client.deserialize_executable(serialized, _native.DeviceList(self.devices), None)


@dataclasses.dataclass(frozen=True, eq=False)
class MovingProgram:
    """A program for calls some of whose arguments have to be transferred.

    Attributes:
      compiled: the program.
      wanted: where those arguments go, by leaf. The dispatch passes on these very objects, so
        that it can be told by them which argument it was.
    """

    compiled: jax.stages.Compiled
    wanted: Mapping[int, jax.sharding.Sharding]


Repeatable = jax.stages.Compiled | LocalProgram | MovingProgram | None


def _fastpath_data(program: jax.stages.Compiled | LocalProgram | MovingProgram, result: Any) -> Any:
    """Returns what the C++ dispatch needs to run ``program`` by itself, or None if it cannot."""
    is_local = isinstance(program, LocalProgram)
    compiled = program if isinstance(program, jax.stages.Compiled) else program.compiled
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
    if is_local and const_args:
        return None  # They lie on the devices of all processes.
    argument_count = len(const_args) + len(jax.tree.leaves(compiled.in_avals))

    def physical(shardings: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        return [
            _sharding_impls.physical_sharding(aval, sharding)
            if aval is not _core.abstract_token and _dtypes.issubdtype(aval.dtype, _dtypes.extended)
            else sharding
            for sharding, aval in zip(shardings, avals, strict=True)
        ]

    xla_executable, in_shardings = executable.xla_executable, executable._in_shardings
    if isinstance(program, LocalProgram):
        kept = [program.in_shardings[index] for index in sorted(executable._kept_var_idx)]
        xla_executable, in_shardings = program.executable, kept
    if isinstance(program, MovingProgram):
        kept_leaves = [index - len(const_args) for index in sorted(executable._kept_var_idx)]
        in_shardings = [
            program.wanted.get(leaf, sharding)
            for leaf, sharding in zip(kept_leaves, in_shardings, strict=True)
        ]

    return _pxla.MeshExecutableFastpathData(
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


_USABLE: dict[tuple[jax.Device, ...], bool] = {}


def can_run_locally(devices: tuple[jax.Device, ...]) -> bool:
    """Says whether what a ``LocalProgram`` gives can be used like any other array here.

    The runtime takes its results for arrays of one shard's shape. Releases that read arrays shard
    by shard do not mind; from 0.11 on some reads ask the runtime for the shape. One look at a
    small result tells, without the other processes.
    """
    if not HAS_RELOAD or _config.debug_nans.value or _config.debug_infs.value:
        return False
    if devices not in _USABLE:
        with neutral_context(), jax.transfer_guard("allow"):
            try:
                _USABLE[devices] = _is_usable(devices)
            except Exception:
                # Whatever this backend cannot do, it can do without.
                _USABLE[devices] = False
    return _USABLE[devices]


def _is_usable(devices: tuple[jax.Device, ...]) -> bool:
    mesh = Mesh(np.array(devices), ("i",))
    rows, whole = NamedSharding(mesh, PartitionSpec("i")), NamedSharding(mesh, PartitionSpec())
    probe = jax.shard_map(
        lambda x: x + 1,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    shard = jax.ShapeDtypeStruct((1, 3), np.float32, sharding=whole)
    program = LocalProgram(jax.jit(probe).lower(shard).compile(), devices, (rows,))
    numbers = np.arange(3.0 * len(devices), dtype=np.float32).reshape(-1, 3)
    x = jax.device_put(numbers, rows)
    dispatch = Dispatcher("probe", (), lambda x: (x, program), lambda x, s: None, lambda x: x).call
    dispatch(x)
    y = dispatch(x)
    seen = [
        np.asarray(y),
        np.asarray(jax.device_put(dispatch(x), whole)),
        np.asarray(jax.device_put(dispatch(x), devices[-1])),
        np.asarray(jax.jit(lambda x: x * 1)(y)),
        np.concatenate([shard.data for shard in y.addressable_shards]),
        np.asarray(dispatch(y)) - 1,
    ]
    return all(np.array_equal(value, numbers + 1) for value in seen)


@dataclasses.dataclass(frozen=True, eq=False)
class _Recipe:
    """How the results of one program are seen as host-local arrays."""

    tree: Any
    avals: Sequence[Any]
    shardings: Sequence[NamedSharding]


class _Labelled:
    """The results of a program, with the recipe for them; None when they are as they should be."""

    __slots__ = ("leaves", "recipe")

    def __init__(self, recipe: Any, leaves: Any) -> None:
        self.recipe = recipe
        self.leaves = leaves


jax.tree_util.register_pytree_node(
    _Labelled, lambda labelled: (labelled.leaves, labelled.recipe), _Labelled
)


class RowsDispatcher:
    """Calls a program that spans processes on host-local arrays; its results are host-local too.

    The executable takes the shards of host-local arrays as they are. Its results are global
    arrays; each is seen as an array of this process's rows by a call into C++.

    ``on_unseen(*args, **kwargs)`` runs the call and returns its host-local result, the program's
    own result, and the program; None for the last two when it should be asked again.
    """

    def __init__(
        self,
        name: str,
        static_argnums: Sequence[int],
        on_unseen: Callable[..., tuple[Any, Any, jax.stages.Compiled | None]],
        on_misplaced: Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None],
        run_eagerly: Callable[..., Any],
    ) -> None:
        """Makes the dispatch; needs ``CAN_REWRAP``."""
        # By identity, as hashing a sharding for each leaf of each call is not free.
        local_shardings: dict[int, tuple[Any, NamedSharding]] = {}

        def local_of(sharding: Any) -> NamedSharding:
            known = local_shardings.get(id(sharding))
            if known is None:
                known = local_shardings[id(sharding)] = sharding, local_sharding(sharding)
            return known[1]

        def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            result, of_program, compiled = on_unseen(*args, **kwargs)
            leaves, tree = jax.tree.flatten(result)
            data = None if compiled is None else _fastpath_data(compiled, of_program)
            if data is None or not all(isinstance(leaf, _native.ArrayImpl) for leaf in leaves):
                return _Labelled(None, (result,)), None, False
            recipe = _Recipe(
                tree, [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
            )
            labelled = jax.tree.structure(_Labelled(recipe, leaves))
            return _Labelled(None, (result,)), data._replace(out_pytree_def=labelled), False

        def shard_argument(x: Any, sharding: Any, layout: Any) -> Any:
            local = local_of(sharding)
            if isinstance(x, _native.ArrayImpl):
                if x.sharding is local:
                    return x
                if not x.is_fully_addressable:
                    return _pxla.cc_shard_arg(x, sharding, layout)
                moved = on_misplaced(x, local)
                if moved is not None:
                    return moved
            return _pxla.cc_shard_arg(x, local, layout)

        self._dispatch: Any = _dispatch(
            name, static_argnums, on_cache_miss, shard_argument, run_eagerly
        )
        self._rewrap = _native.ArrayImpl._rewrap_with_aval_and_sharding

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call."""
        labelled = self._dispatch(*args, **kwargs)
        recipe = labelled.recipe
        if recipe is None:
            return labelled.leaves[0]
        rows = map(self._rewrap, labelled.leaves, recipe.avals, recipe.shardings)
        return recipe.tree.unflatten(rows)

    def clear(self) -> None:
        """Forgets every signature."""
        self._dispatch._clear_cache()


def wait_for_all(name: str, timeout: float) -> list[int] | None:
    """Waits for all processes at a barrier; on time-out returns those that did not come."""
    client: Any = _distributed.global_state.client
    client.key_value_set(f"{name}/{jax.process_index()}", "here")
    try:
        client.wait_at_barrier(name, int(timeout * 1000))
    except Exception as error:
        if "DEADLINE_EXCEEDED" not in str(error) and "timed out" not in str(error):
            raise
        came = {int(key.rsplit("/", 1)[1]) for key, _ in client.key_value_dir_get(name)}
        return [process for process in range(jax.process_count()) if process not in came]
    return None


def published(name: str, text: str, timeout: float) -> dict[int, str]:
    """Tells all processes ``text`` under a name; returns what each of them told."""
    client: Any = _distributed.global_state.client
    client.key_value_set(f"{name}/{_distributed.global_state.process_id}", text)
    return {
        process: client.blocking_key_value_get(f"{name}/{process}", int(timeout * 1000))
        for process in range(_distributed.global_state.num_processes)
    }


def coordinator_address() -> str | None:
    """Returns where the processes meet, once they have."""
    return _distributed.global_state.coordinator_address if HAS_COORDINATION else None


def _hide_frames() -> bool:
    """Has JAX leave pmapx's files out of tracebacks, as its own; says whether it does."""
    if _PUBLIC_ONLY:
        return False
    try:
        from jax._src import traceback_util

        traceback_util.register_exclusion(os.path.dirname(__file__) + os.sep)
    except (ImportError, AttributeError):
        return False
    return True


HAS_HIDDEN_FRAMES = _hide_frames()
