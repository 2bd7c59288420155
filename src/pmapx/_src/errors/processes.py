"""Several processes: what they disagree on, what is missing, and who is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError


def _counted(counts: dict[int, int]) -> str:
    return ", ".join(f"process {index} has {count}" for index, count in sorted(counts.items()))


class UnevenShares(PmapxError, ValueError, code="PMX401"):
    """The rows of a map cannot be shared out among the processes.

    Every process finds out by itself how large the map is over all of them, so their shares
    follow a rule: where all processes have equally many devices, each passes equally many rows;
    where they have not, each passes a row for every device it has.
    """

    def __init__(
        self, function: str, argument: str, size: int, available: int, counts: dict[int, int]
    ) -> None:
        super().__init__(
            f"{function}: {argument} has {size} rows along the mapped axis, which does not fit "
            f"{available} devices of a process; of the map's devices, {_counted(counts)}.",
            fix="pass a row for each of jax.local_devices(), or name as many devices of each "
            "process with the argument 'devices'.",
        )


class NoLocalDevices(PmapxError, ValueError, code="PMX402"):
    """A map has no device in this process.

    Only processes that have some of its devices take part in a map; the others must not call it.
    """

    def __init__(self, here: int, processes: Sequence[int]) -> None:
        super().__init__(
            f"process {here} called a map along an axis whose devices are all of processes "
            f"{list(processes)}.",
            fix="call it in those processes only, or add devices of this process to the argument "
            "'devices'.",
        )


class RowSpansProcesses(PmapxError, ValueError, code="PMX403"):
    """One element of the outermost mapped axis lies in several processes.

    A process passes and gets whole rows, so all devices of a row, those of the pmaps inside it
    included, must be of one process.
    """

    def __init__(self, axes: dict[str, int], here: int) -> None:
        super().__init__(
            f"the mapped axes {axes} lay one row of the first axis over process {here} and others.",
            fix="list the devices so that those of a row are of one process, as jax.devices() "
            "does, or make the inner axes no larger than jax.local_device_count().",
        )


class LocalRowsDisagree(PmapxError, ValueError, code="PMX404"):
    """A process passes more or fewer rows than it has of the map.

    ``axis_size`` is the size of the mapped axis over all processes; each passes its own rows.
    """

    def __init__(
        self, function: str, argument: str, passed: int, rows: int, size: int, here: int
    ) -> None:
        super().__init__(
            f"{function}: process {here} passes {passed} rows of {argument} along the mapped "
            f"axis, but of {size} rows over all processes, {rows} are its own.",
            fix="pass this process's rows only, as many as it has devices in the map; axis_size "
            "counts the rows of all processes.",
        )


class CompiledForAnotherShape(PmapxError, TypeError, code="PMX406"):
    """A compiled map was called with rows of another shape than it was compiled for.

    What ``lower(...).compile()`` returns is a program for one shape of each argument. In a map
    that spans processes, that is the shape of this process's rows.
    """

    def __init__(
        self, function: str, argument: str, found: tuple[int, ...], wanted: tuple[int, ...]
    ) -> None:
        super().__init__(
            f"{function} was compiled for {argument} of shape {list(wanted)}, the rows of this "
            f"process along its mapped axis, and is called with shape {list(found)}.",
            fix="pass the shape it was lowered for, or lower it again.",
        )


class ReplicasDiffer(PmapxError, ValueError, code="PMX407"):
    """Processes passed different values for an argument that all must pass alike.

    An argument with ``in_axes=None`` is one value for all devices, so every process has to pass
    the same. ``check_replicas=True`` compares them before each call; without it the devices of
    each process would silently go on with their own.
    """

    def __init__(self, function: str, argument: str, difference: Any) -> None:
        super().__init__(
            f"{function}: {argument} has in_axes=None, no mapped axis, but differs between "
            f"processes:\n{difference}",
            fix="make it the same in all processes: from one seed, or sent from process 0 with "
            "jax.experimental.multihost_utils.broadcast_one_to_all.",
        )


class CallsDiffer(PmapxError, RuntimeError, code="PMX408"):
    """Processes made different calls at the same time.

    All processes of a map call the same functions in the same order, with arguments of the same
    shapes. One that does otherwise would leave the others waiting for ever;
    ``check_replicas=True`` compares the calls before they run.
    """

    def __init__(self, function: str, difference: Any) -> None:
        super().__init__(
            f"the processes do not make the same call of a mapped axis; this one calls "
            f"{function}. The first difference:\n{difference}",
            fix="look for a condition on the process's number, its data or its files that decides "
            "what is called.",
        )


class StitchDisagreement(PmapxError, ValueError, code="PMX409"):
    """Processes passed different trees to stitch.

    Each passes its own part of the same arrays: the same tree, the same shapes, the same types.
    """

    def __init__(self, difference: Any) -> None:
        super().__init__(
            "stitch: the processes' parts do not fit together along any axis; the first leaf that "
            f"differs:\n{difference}",
            fix="pass the same tree with the same shapes and types in all processes; pad the last "
            "batch.",
        )


class CannotStitch(PmapxError, ValueError, code="PMX410"):
    """An array cannot be split over this process's devices as its spec says.

    Along each dimension that the spec names a mesh axis for, a process's part is split evenly
    over its own devices along that axis.
    """

    def __init__(self, path: str, shape: tuple[int, ...], spec: str, sizes: dict[Any, int]) -> None:
        super().__init__(
            f"stitch: {path} is of shape {list(shape)} in this process, which {spec} cannot split "
            f"over its part of the mesh axes, {sizes}.",
            fix="pass a multiple of the devices that this process has along each split axis.",
        )


class CannotUnstitch(PmapxError, TypeError, code="PMX411"):
    """An array lies in a way that has no rows to give back.

    ``unstitch`` takes arrays with a ``NamedSharding``, whose mesh says which part is this
    process's.
    """

    def __init__(self, shape: str, sharding: str) -> None:
        super().__init__(
            f"unstitch got an array of shape {shape} with a {sharding}, which names no axis.",
            fix="put it on a NamedSharding first, with jax.device_put(x, sharding).",
        )


class BarrierTimeout(PmapxError, TimeoutError, code="PMX412"):
    """Some processes did not come to a barrier in time.

    They may be lost, slow, or at another barrier. Each process that waits gives up after its own
    timeout; the next call of ``barrier`` with this name waits for the same processes again.
    """

    def __init__(self, name: str, timeout: float, missing: Sequence[int], here: int) -> None:
        who = (
            f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))} did not come"
            if missing
            else "some processes did not come"
        )
        super().__init__(
            f"process {here} waited {timeout:g} seconds at the barrier {name!r} (no mapped axis "
            f"is involved): {who}.",
            fix="look at the output of those processes; give a longer timeout if they are only "
            "slow.",
        )


class NoCluster(PmapxError, RuntimeError, code="PMX413"):
    """Nothing tells how to find the other processes.

    ``initialize`` finds Open MPI, Slurm, TPU pods and Kubernetes by variables that they set.
    Elsewhere the coordinator's address, the number of processes and the number of this one have
    to be passed. ``pmapx run -n`` sets them up on one machine.
    """

    def __init__(self, missing: Sequence[str], looked_for: Sequence[str]) -> None:
        super().__init__(
            f"initialize found no cluster, and its arguments {', '.join(missing)} are not given "
            f"(nor is any axis mapped yet). None of these is set: {', '.join(looked_for)}.",
            fix="start the program with srun, mpirun or pmapx run -n, or pass "
            f"{', '.join(missing)}.",
        )


class BadCoordinator(PmapxError, RuntimeError, code="PMX414"):
    """The coordinator's address cannot be used.

    Process 0 opens it, and the others connect to it.
    """

    def __init__(self, address: str, process: int, problem: str) -> None:
        role = "open" if process == 0 else "reach"
        super().__init__(
            f"process {process} cannot {role} the coordinator address {address!r}, before any "
            f"axis is mapped: {problem}.",
            fix="pass an address of process 0's machine and a port that is free there, the same "
            "in all processes.",
        )
