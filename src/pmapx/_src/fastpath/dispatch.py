"""JAX's C++ dispatch, the one behind ``jax.jit``, around pmapx's own programs."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src.fastpath import jax_src
from pmapx._src.fastpath.arrays import array_type
from pmapx._src.fastpath.probes import Piece, Unlike, check_alike, warn_of_pending
from pmapx._src.mesh.resharding import is_placed
from pmapx._src.multihost.host_local import local_sharding

OnMisplaced = Callable[[jax.Array, jax.sharding.Sharding], jax.Array | None]


def takes_as_placed(x: jax.Array, *meshes: jax.sharding.Mesh) -> bool:
    """Whether the dispatch would take ``x`` as placed on the mesh without checking.

    It compares the number of devices only, so an array with the same number must not come to it: a
    program would run on shards of another shape. A single device is checked.
    """
    return any(len(x.sharding.device_set) == mesh.size > 1 for mesh in meshes)


class Dispatcher:
    """Calls a compiled program by the call's signature; calls ``on_cache_miss`` for a new one.

    ``on_cache_miss(*args, **kwargs)`` runs the call and returns its result and the program, or None
    for a program if the next such call should be a miss again. ``on_misplaced`` is given an array
    that may have another sharding than a program wants, and that; it returns the array transferred,
    or None to leave that to the dispatch.
    """

    def __init__(
        self,
        name: str,
        static_argnums: Sequence[int],
        on_cache_miss: Callable[..., tuple[Any, Repeatable]],
        on_misplaced: OnMisplaced,
        run_eagerly: Callable[..., Any],
    ) -> None:
        programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._programs = programs
        self._is_native = False

        def call_twin(*args: Any, **kwargs: Any) -> Any:
            result, program = on_cache_miss(*args, **kwargs)
            if program is not None:
                programs.add(program)
            return result

        self.call: Callable[..., Any] = call_twin
        if not DISPATCH.is_usable():
            return

        def on_native_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
            warn_of_pending()
            result, program = on_cache_miss(*args, **kwargs)
            return result, None if program is None else fastpath_data(program, result), False

        try:
            self.call = make_dispatch(
                name, static_argnums, on_native_miss, make_shard_argument(on_misplaced), run_eagerly
            )
            self._is_native = True
        except Exception as error:
            DISPATCH.fail(error)

    def clear(self) -> None:
        self._programs.clear()
        if self._is_native:
            self.call._clear_cache()  # type: ignore[attr-defined]

    def size(self) -> int:
        """Returns how many signatures it knows; the twin counts programs that have run."""
        if self._is_native:
            read = getattr(self.call, "_cache_size", None)
            return 0 if read is None else int(read())
        return len(self._programs)


def make_shard_argument(on_misplaced: OnMisplaced) -> Callable[[Any, Any, Any], Any]:
    """Returns what the dispatch calls for an argument that it cannot place by itself.

    Host-local arguments of a program over all processes' devices come here in every call, as JAX
    compares the numbers of devices.
    """
    array, shard_argument = jax_src.native.ArrayImpl, jax_src.pxla.cc_shard_arg
    # By identity, as comparing shardings takes longer than everything else; kept alive for that.
    equivalent: dict[tuple[int, int, int], tuple[Any, Any]] = {}

    def place(x: Any, sharding: Any, layout: Any) -> Any:
        is_plain = type(x) is array and layout is None
        if is_plain:
            found = x.sharding
            if found is sharding or (id(found), id(sharding), x.ndim) in equivalent:
                return x
        is_array = isinstance(x, jax.Array)
        is_host_local = not (is_array and not x.is_fully_addressable)
        is_global = not sharding.is_fully_addressable
        wanted = local_sharding(sharding) if is_global and is_host_local else sharding
        if is_plain and x.committed and is_placed(x, wanted):
            if len(equivalent) >= 1024:
                equivalent.clear()
            equivalent[id(found), id(sharding), x.ndim] = found, sharding
            return x
        transferred = on_misplaced(x, wanted) if is_array else None
        return shard_argument(x, wanted, layout) if transferred is None else transferred

    return place


def make_dispatch(
    name: str,
    static_argnums: Sequence[int],
    on_cache_miss: Callable[..., tuple[Any, Any, bool]],
    shard_argument: Callable[[Any, Any, Any], Any],
    run_eagerly: Callable[..., Any],
) -> Any:
    dispatch = jax_src.native.pjit(
        name,
        run_eagerly,
        on_cache_miss,
        list(static_argnums),
        [],
        jax_src.pxla.JitGlobalCppCacheKeys(),
        jax_src.tree_util.dispatch_registry,
        shard_argument,
    )
    # JAX calls this under debug_nans to find the operation at fault.
    dispatch._fun = run_eagerly
    return dispatch


class RepeatableProgram(Protocol):
    """A program that the dispatch runs in another way than a compiled one."""

    piece: ClassVar[Piece]  # It fails if ``data`` does.

    def data(self, result: Any) -> Any:
        """Returns what ``data_of`` does for a call that gave ``result``."""


Repeatable = jax.stages.Compiled | RepeatableProgram | None


def fastpath_data(program: jax.stages.Compiled | RepeatableProgram, result: Any) -> Any:
    """Returns what the C++ dispatch needs to run ``program`` by itself, or None if it cannot.

    The call has run by now, and may have consumed donated arguments: nothing is raised.
    """
    piece = PROGRAMS if isinstance(program, jax.stages.Compiled) else program.piece
    try:
        if not PROGRAMS.is_usable(result):
            return None
        if isinstance(program, jax.stages.Compiled):
            return data_of(program, result)
        return program.data(result)
    except Exception as error:
        piece.fail(error)
        return None


def data_of(
    compiled: jax.stages.Compiled,
    result: Any,
    in_shardings: Sequence[Any] | None = None,
    loaded: Callable[[], Any] | None = None,
) -> Any:
    """Returns what the C++ dispatch needs to run a compiled program that gave ``result``.

    ``in_shardings`` are those of its arguments, if they are not the program's own. ``loaded``
    returns the executable to run in place of the program's own, if it should be another.
    """
    executable: Any = compiled._executable
    parameters: Any = compiled._params
    call = getattr(executable, "unsafe_call", None)
    if (
        not isinstance(call, jax_src.pxla.ExecuteReplicated)
        or call.has_unordered_effects
        or call.has_host_callbacks
        or call.ordered_effects
        or parameters.is_high
        or executable._mut
        or jax_src.config.debug_nans.value
        or jax_src.config.debug_infs.value
    ):
        return None
    out_leaves, out_tree = jax_src.pxla.reflatten_outputs_for_dispatch(
        compiled.out_tree, jax.tree.leaves(result)
    )
    if not all(isinstance(leaf, array_type()) for leaf in out_leaves):
        return None
    const_args = parameters.const_args
    if hasattr(executable, "shard_const_args"):
        const_args = executable.shard_const_args(const_args)
    if loaded is not None and const_args:
        return None  # They are on the devices of all processes.
    argument_count = len(const_args) + len(jax.tree.leaves(compiled.in_avals))
    kept_shardings = list(executable._in_shardings)
    if in_shardings is not None:
        for position, index in enumerate(sorted(executable._kept_var_idx)):
            if index >= len(const_args):
                kept_shardings[position] = in_shardings[index - len(const_args)]

    return jax_src.pxla.MeshExecutableFastpathData(
        xla_executable=executable.xla_executable if loaded is None else loaded(),
        out_pytree_def=out_tree,
        in_shardings=_physical(kept_shardings, executable.in_avals),
        out_shardings=[leaf.sharding for leaf in out_leaves],
        out_avals=[leaf.aval for leaf in out_leaves],
        out_committed=[leaf.committed for leaf in out_leaves],
        kept_var_bitvec=[index in executable._kept_var_idx for index in range(argument_count)],
        in_device_local_layouts=executable._dispatch_in_layouts,
        const_args=const_args,
    )


def _physical(shardings: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """Returns the shardings of the physical arrays behind types such as keys.

    Equal ones are one object: ``make_shard_argument`` goes by identity.
    """
    token, extended = jax_src.core.abstract_token, jax_src.dtypes.extended
    physical = [
        jax_src.sharding_impls.physical_sharding(aval, sharding)
        if aval is not token and jax_src.dtypes.issubdtype(aval.dtype, extended)
        else sharding
        for sharding, aval in zip(shardings, avals, strict=True)
    ]
    same: dict[Any, Any] = {}
    return [same.setdefault(sharding, sharding) for sharding in physical]


def _probe_dispatch() -> None:
    """Calls a handler through the dispatch; nothing is compiled, and no device is started."""
    seen: list[Any] = []

    def on_cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        seen.append((args, kwargs))
        return {"result": args}, None, False

    shard_argument = make_shard_argument(lambda x, sharding: None)
    dispatch = make_dispatch("probe", (0,), on_cache_miss, shard_argument, lambda *args: args)
    results = [dispatch("static"), dispatch("static")]
    dispatch._clear_cache()
    if results != [{"result": ("static",)}] * 2 or seen != [(("static",), {})] * 2:
        raise Unlike(f"{results} for calls that came as {seen}")


def _probe_programs(near: Any = None) -> None:
    """Runs a tiny program through the dispatch, on two devices of a result ``near``, or on one."""
    arrays = [leaf for leaf in jax.tree.leaves(near) if isinstance(leaf, array_type())]
    local: Any = arrays[0].sharding.addressable_devices if arrays else jax.local_devices()
    devices = sorted(local, key=lambda device: device.id)[:2]
    mesh = Mesh(np.array(devices), ("i",))
    sharded, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["i"], []))
    x = jax.device_put(np.array([[1.5], [-2.0]], np.float32), sharded)
    unused, y = jax.device_put((np.float32(0), np.array([7], np.int32)), replicated)

    def pmapx_probe(x: Any, unused: Any, y: Any) -> Any:
        return {"b": -x, "a": (y,)}

    compiled = jax.jit(pmapx_probe).lower(x, unused, y=y).compile()
    twin = compiled(x, unused, y=y)
    missed: list[Any] = []
    transferred: list[Any] = []

    def on_cache_miss(static: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        missed.append(static)
        return twin, data_of(compiled, twin), False

    def transfer(x: jax.Array, sharding: Any) -> jax.Array:
        transferred.append(sharding)
        return jax.device_put(x, sharding)

    shard_argument = make_shard_argument(transfer)
    dispatch = make_dispatch("probe", (0,), on_cache_miss, shard_argument, pmapx_probe)
    elsewhere = jax.device_put(x, devices[-1])
    for placed in (x, np.asarray(x), elsewhere):
        for _ in range(2):
            check_alike(dispatch("static", placed, unused, y=y), twin)
    if missed != ["static"] * 3:
        raise Unlike(f"{len(missed)} cache misses for 3 signatures")
    if transferred != [sharded] * (len(devices) - 1):
        raise Unlike(f"{transferred} for an array that is not on the mesh")
    check_alike(jax_src.pxla.cc_shard_arg(np.asarray(x), sharded, None), x)


_SLOWER = "each call takes some microseconds longer"
DISPATCH = Piece("dispatch in C++", _probe_dispatch, _SLOWER)
PROGRAMS = Piece("programs run by the dispatch", _probe_programs, _SLOWER)


@dataclasses.dataclass(frozen=True, eq=False)
class TransferringProgram:
    """A program for calls some of whose arguments have to be transferred."""

    piece: ClassVar[Piece] = PROGRAMS
    compiled: jax.stages.Compiled
    # The shardings of those arguments, by leaf. The dispatch passes on these very objects, so that
    # their identity shows which argument it transfers.
    wanted: Mapping[int, jax.sharding.Sharding]

    def data(self, result: Any) -> Any:
        data = data_of(self.compiled, result)
        if data is None:
            return None
        kept = [index for index, is_kept in enumerate(data.kept_var_bitvec) if is_kept]
        leaves = (index - len(data.const_args) for index in kept)
        pairs = zip(leaves, data.in_shardings, strict=True)
        return data._replace(in_shardings=[self.wanted.get(*pair) for pair in pairs])
