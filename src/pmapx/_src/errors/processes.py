"""Multi-process mistakes: processes that disagree, arguments that do not fit, missing processes."""

from collections.abc import Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError


class UnevenProcessShards(PmapxError, ValueError, code="PMX401"):
    """The mapped axis cannot be distributed over the processes.

    Each process infers the global size of the mapped axis from its host-local arguments. If all
    processes have the same number of devices, each passes the same local size; otherwise each
    passes one shard for every local device.
    """

    def __init__(
        self, function: str, argument: str, size: int, available: int, counts: dict[int, int]
    ) -> None:
        devices = ", ".join(f"process {i} has {count}" for i, count in sorted(counts.items()))
        super().__init__(
            f"{function}: {argument} has size {size} along the mapped axis, which does not fit "
            f"{available} devices per process; of the devices of this pmapped function, {devices}.",
            fix="pass one shard for each of jax.local_devices(), or pass the same number of "
            "devices of each process in the argument 'devices'.",
        )


class NoLocalDevices(PmapxError, ValueError, code="PMX402"):
    """A pmapped function has no device in this process.

    Only the processes that own some of its devices may call a pmapped function.
    """

    def __init__(self, here: int, processes: Sequence[int]) -> None:
        super().__init__(
            f"process {here} called a pmapped function whose devices all belong to processes "
            f"{list(processes)}.",
            fix="call it only in those processes, or add devices of this process to the argument "
            "'devices'.",
        )


class ShardAcrossProcesses(PmapxError, ValueError, code="PMX403"):
    """One index of the outermost mapped axis uses devices of several processes.

    Each process passes and receives complete shards of the outermost mapped axis, so all devices
    of a shard, including those of nested pmaps, must belong to one process.
    """

    def __init__(self, axes: dict[str, int], here: int) -> None:
        super().__init__(
            f"the mapped axes {axes} place one shard of the first axis on devices of process "
            f"{here} and of other processes.",
            fix="order the devices so that those of a shard belong to one process, as "
            "jax.devices() does, or make the inner axes no larger than jax.local_device_count().",
        )


class LocalSizeMismatch(PmapxError, ValueError, code="PMX404"):
    """A host-local argument has the wrong size along the mapped axis.

    ``axis_size`` is the global size of the mapped axis, over all processes; each process passes
    only its own shards.
    """

    def __init__(
        self, function: str, argument: str, passed: int, own: int, size: int, here: int
    ) -> None:
        super().__init__(
            f"{function}: process {here} passed {argument} with local size {passed} along the "
            f"mapped axis, but owns {own} of its {size} shards.",
            fix="pass only the shards of this process, one for each of its devices; axis_size is "
            "the global size.",
        )


class CompiledForAnotherShape(PmapxError, TypeError, code="PMX406"):
    """A compiled function was called with arguments of another shape.

    ``lower(...).compile()`` returns a program for one shape of each argument. If it runs on
    several processes, that is the host-local shape.
    """

    def __init__(
        self, function: str, argument: str, found: tuple[int, ...], wanted: tuple[int, ...]
    ) -> None:
        super().__init__(
            f"{function} was compiled for {argument} of host-local shape {list(wanted)}, but was "
            f"called with shape {list(found)}.",
            fix="pass the shape it was lowered for, or lower it again.",
        )


class ReplicasDiffer(PmapxError, ValueError, code="PMX407"):
    """Processes passed different values for a replicated argument.

    An argument with ``in_axes=None`` is replicated on all devices, so every process must pass the
    same value. ``check_replicas=True`` compares them before each call; without it, the devices of
    each process would silently use their own value.
    """

    def __init__(self, function: str, argument: str, difference: Any) -> None:
        super().__init__(
            f"{function}: {argument} has in_axes=None, but its value differs between processes:\n"
            f"{difference}",
            fix="make it equal in all processes: derive it from one seed, or broadcast it from "
            "process 0 with jax.experimental.multihost_utils.broadcast_one_to_all.",
        )


class CallsDiffer(PmapxError, RuntimeError, code="PMX408"):
    """Processes made different calls at the same time.

    All processes must call the same pmapped functions in the same order, with arguments of the
    same shapes. Otherwise they wait for each other forever; ``check_replicas=True`` compares the
    calls before they run.
    """

    def __init__(self, function: str, difference: Any) -> None:
        super().__init__(
            f"the processes called different pmapped functions, or the same one with different "
            f"arguments; this one called {function}. The first difference:\n{difference}",
            fix="look for a condition on the process index, its data or its files that decides "
            "what is called.",
        )


class StitchShapesDiffer(PmapxError, ValueError, code="PMX409"):
    """Processes passed different trees to stitch.

    Each process passes its host-local part of the same global arrays: the same structure, shapes
    and dtypes.
    """

    def __init__(self, difference: Any) -> None:
        super().__init__(
            "stitch: the host-local trees have different structures, shapes or dtypes; the first "
            f"leaf that differs:\n{difference}",
            fix="pass the same structure, shapes and dtypes in all processes; pad the last batch.",
        )


class CannotStitch(PmapxError, ValueError, code="PMX410"):
    """A host-local array cannot be sharded over this process's devices by its spec.

    Each dimension that the spec assigns to mesh axes must be divisible by the number of this
    process's devices along them.
    """

    def __init__(self, path: str, shape: tuple[int, ...], spec: str, sizes: dict[Any, int]) -> None:
        super().__init__(
            f"stitch: {path} has host-local shape {list(shape)}, which cannot be sharded by {spec} "
            f"over this process's part of the mesh, {sizes}.",
            fix="make each sharded dimension a multiple of the number of this process's devices "
            "along its mesh axes.",
        )


class CannotUnstitch(PmapxError, TypeError, code="PMX411"):
    """unstitch got an array without a NamedSharding.

    ``unstitch`` needs a ``NamedSharding``, whose mesh determines the part that belongs to this
    process.
    """

    def __init__(self, shape: str, sharding: str) -> None:
        super().__init__(
            f"unstitch got an array of shape {shape} with a {sharding}; it needs a NamedSharding.",
            fix="reshard it first: jax.device_put(x, NamedSharding(mesh, spec)).",
        )


class BarrierTimeout(PmapxError, TimeoutError, code="PMX412"):
    """Some processes did not reach a barrier in time.

    They may have crashed, be slow, or wait at another barrier. Each waiting process gives up after
    its own timeout; the next call of ``barrier`` with this name waits for the same processes again.
    """

    def __init__(self, name: str, timeout: float, missing: Sequence[int], here: int) -> None:
        who = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        super().__init__(
            f"process {here} waited {timeout:g} seconds at the barrier {name!r}: "
            f"{who if missing else 'some processes'} did not reach it.",
            fix="check the output of those processes; pass a longer timeout if they are only slow.",
        )


class NoCluster(PmapxError, RuntimeError, code="PMX413"):
    """initialize detected no cluster environment.

    ``initialize`` detects Open MPI, Slurm, TPU pods and Kubernetes by their environment variables.
    Elsewhere, pass the coordinator address, the number of processes and the process id.
    ``pmapx run -n`` sets them up on one machine.
    """

    def __init__(self, missing: Sequence[str], looked_for: Sequence[str]) -> None:
        super().__init__(
            f"initialize detected no cluster environment, and {', '.join(missing)} were not "
            f"passed. None of these variables is set: {', '.join(looked_for)}.",
            fix="start the program with srun, mpirun or pmapx run -n, or pass "
            f"{', '.join(missing)}.",
        )


class BadCoordinator(PmapxError, RuntimeError, code="PMX414"):
    """The coordinator address cannot be used.

    Process 0 listens on it, and the other processes connect to it.
    """

    def __init__(self, address: str, process: int, problem: str) -> None:
        role = "listen on" if process == 0 else "connect to"
        super().__init__(
            f"process {process} cannot {role} the coordinator address {address!r}: {problem}.",
            fix="pass an address of the host of process 0 and a free port there, the same in all "
            "processes.",
        )
