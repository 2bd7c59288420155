"""Multi-process programs, run by the C++ dispatch on host-local arrays.

There are two ways, as releases of JAX differ in what they allow. A ``LocalProgram`` takes and
returns host-local arrays by itself; JAX 0.12 cannot read them. A ``GlobalProgram`` returns global
arrays, each converted to a host-local one by a call into C++ that JAX 0.8 does not have; at 1000
leaves it takes three times as long. The public twin, ``multihost.host_local``, converts each array
in Python.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src.fastpath import jax_src
from pmapx._src.fastpath.arrays import array_type
from pmapx._src.fastpath.dispatch import data_of, make_dispatch, make_shard_argument
from pmapx._src.fastpath.probes import Piece, Unlike, check_alike, passes
from pmapx._src.mesh.trace_context import is_checking_nans

_SLOWER = "each call of a pmapped function over processes converts its arrays one by one"


def _probe_local_programs(devices: tuple[jax.Device, ...] = ()) -> None:
    devices = devices or tuple(jax.local_devices())
    mesh = Mesh(np.array(devices), ("i",))
    sharded, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["i"], []))
    probe = jax.shard_map(
        lambda x: x + 1,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    shard = jax.ShapeDtypeStruct((1, 3), np.float32, sharding=replicated)
    program = LocalProgram(jax.jit(probe).lower(shard).compile(), devices, (sharded,))
    numbers = np.arange(3.0 * len(devices), dtype=np.float32).reshape(-1, 3)
    x = jax.device_put(numbers, sharded)
    dispatch = make_dispatch(
        "probe",
        (),
        lambda x: (x, program.data(x), False),
        make_shard_argument(lambda x, sharding: None),
        lambda x: x,
    )
    dispatch(x)
    _check_reads(lambda: dispatch(x), numbers + 1, replicated)
    if not np.array_equal(np.asarray(dispatch(dispatch(x))), numbers + 2):
        raise Unlike("results that are fed back give other values")


def _check_reads(make: Callable[[], jax.Array], wanted: Any, replicated: NamedSharding) -> None:
    """Reads an array in all ways that JAX has; each time a new one, as arrays keep their values."""
    last = replicated.mesh.devices.flat[-1]
    seen = {
        "read": np.asarray(make()),
        "replicated": np.asarray(jax.device_put(make(), replicated)),
        "transferred to one device": np.asarray(jax.device_put(make(), last)),
        "computed with": np.asarray(jax.jit(lambda x: x * 1)(make())),
        "split into shards": np.concatenate([shard.data for shard in make().addressable_shards]),
    }
    for how, value in seen.items():
        if not np.array_equal(value, wanted):
            raise Unlike(f"a host-local result has other values when it is {how}")


LOCAL_PROGRAMS = Piece(
    "programs loaded for one process", _probe_local_programs, _SLOWER, is_optional=True
)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalProgram:
    """A multi-process program of shards, as this process runs it."""

    piece: ClassVar[Piece] = LOCAL_PROGRAMS
    compiled: jax.stages.Compiled  # Of all processes.
    devices: tuple[jax.Device, ...]  # Those of this process, in the order of its mesh.
    in_shardings: tuple[NamedSharding, ...]  # Of host-local inputs.

    @functools.cached_property
    def executable(self) -> Any:
        """The executable, loaded again for this process's devices alone."""
        executable: Any = self.compiled._executable
        client = executable.xla_executable.client
        serialized = client.serialize_executable(executable.xla_executable)
        return client.deserialize_executable(
            serialized, jax_src.native.DeviceList(self.devices), None
        )

    def data(self, result: Any) -> Any:
        return data_of(self.compiled, result, self.in_shardings, lambda: self.executable)


_USABLE: dict[tuple[jax.Device, ...], bool] = {}


def can_run_locally(devices: tuple[jax.Device, ...]) -> bool:
    """Whether the results of a ``LocalProgram`` can be used like any other array here.

    To the runtime they have the shape of one shard. JAX before 0.12 reads arrays shard by shard;
    JAX 0.12 asks the runtime for the shape, which is right only where a process has one device. A
    small program on this process's devices shows which is the case.
    """
    if LOCAL_PROGRAMS.is_given_up or is_checking_nans():
        return False
    if devices not in _USABLE:
        _USABLE[devices] = passes(_probe_local_programs, devices)
    return _USABLE[devices]


def _probe_host_local(platform: str | None = None) -> None:
    """Makes a host-local array of the addressable shards of a global one."""
    if _rewrap is None:
        raise AttributeError("no _rewrap_with_aval_and_sharding")
    mesh = Mesh(np.array(jax.local_devices(backend=platform)), ("i",))
    sharding = NamedSharding(Mesh(np.array(jax.devices(platform)), ("i",)), PartitionSpec("i"))
    numbers = np.arange(3.0 * mesh.size, dtype=np.float32).reshape(-1, 3)
    x = jax.device_put(numbers, NamedSharding(mesh, PartitionSpec("i")))
    shards = [shard.data for shard in x.addressable_shards]
    shape = (sharding.num_devices, 3)

    def make() -> jax.Array:
        global_array = jax.make_array_from_single_device_arrays(shape, sharding, shards)
        return _rewrap(global_array, x.aval, x.sharding)

    check_alike(make(), x)
    _check_reads(make, numbers, NamedSharding(mesh, PartitionSpec()))


HOST_LOCAL = Piece("host-local results", _probe_host_local, _SLOWER, is_optional=True)


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalProgram:
    """A multi-process program, and a call of it."""

    piece: ClassVar[Piece] = HOST_LOCAL
    compiled: jax.stages.Compiled  # Of all processes.
    in_shardings: Sequence[Any]  # Those of the call's arguments, host-local or global.
    result: Any  # Global arrays.

    def data(self, result: Any) -> Any:
        leaves, tree = jax.tree.flatten(result)
        shardings = [leaf.sharding for leaf in leaves if isinstance(leaf, array_type())]
        if len(shardings) != len(leaves):
            return None
        if leaves and not HOST_LOCAL.is_usable(next(iter(leaves[0].devices())).platform):
            return None
        data = data_of(self.compiled, self.result, self.in_shardings)
        if data is None:
            return None
        for sharding in {id(sharding): sharding for sharding in shardings}.values():
            _keep_hlo_sharding(sharding)
        recipe = _Recipe(tree, [leaf.aval for leaf in leaves], shardings)
        return data._replace(out_pytree_def=jax.tree.structure(_Results(recipe, leaves)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Recipe:
    """How the results of one program become host-local arrays."""

    tree: Any
    avals: Sequence[Any]
    shardings: Sequence[Any]


class _Results:
    """Stands for the results of a program in its output tree.

    The dispatch builds its result from that tree, and so makes host-local arrays on the way.
    """

    __slots__ = ("leaves", "recipe")

    def __init__(self, recipe: _Recipe, leaves: Sequence[Any]) -> None:
        self.recipe = recipe
        self.leaves = leaves


def _keep_hlo_sharding(sharding: Any) -> None:
    """Caches the HLO form of a sharding, which JAX asks for with each new array."""
    if "_to_xla_hlo_sharding" not in vars(sharding):
        convert = sharding._to_xla_hlo_sharding
        vars(sharding)["_to_xla_hlo_sharding"] = functools.lru_cache(maxsize=16)(convert)


def _host_local(recipe: _Recipe, leaves: Sequence[Any]) -> Any:
    return recipe.tree.unflatten(map(_rewrap, leaves, recipe.avals, recipe.shardings))


# Not in JAX 0.8.
_rewrap: Any = getattr(
    getattr(jax_src.native, "ArrayImpl", None), "_rewrap_with_aval_and_sharding", None
)
jax.tree_util.register_pytree_node(
    _Results, lambda results: (results.leaves, results.recipe), _host_local
)
