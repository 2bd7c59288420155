"""Ahead-of-time compilation for a target topology, and other arguments of pmapx.audit."""

from collections.abc import Sequence
from typing import Any

from pmapx._src.errors.base import PmapxError


class UnknownTopology(PmapxError, ValueError, code="PMX211"):
    """The name of a topology is not valid.

    A TPU topology is a family and the shape of a slice in chips, such as ``v5e:16x16`` or
    ``v5p:8x8x16``, and ``4x v5e:16x16`` for several slices. ``cpu:64`` is 64 virtual CPU devices,
    and ``gpu:2x8`` is two hosts with eight GPUs each.
    """

    def __init__(self, name: object, problem: str, valid: Sequence[str]) -> None:
        super().__init__(
            f"topology {name!r}: {problem}.", fix=f"use a topology such as {', '.join(valid)}."
        )


class NoCompiler(PmapxError, RuntimeError, code="PMX212"):
    """The compiler for a topology is not installed.

    TPU programs are compiled by ``libtpu``, the wheel of JAX's ``tpu`` extra, which needs no TPU;
    GPU programs by JAX's CUDA plugin, which needs one GPU of the target kind.
    """

    def __init__(self, topology: str, package: str, install: str) -> None:
        super().__init__(
            f"topology {topology!r} needs {package}, which is not installed.",
            fix=f"`{install}`.",
        )


class NoTopologyFromCompiler(PmapxError, RuntimeError, code="PMX213"):
    """The compiler for a topology is installed, but returned no description of the topology.

    It may be in use: libtpu allows one process at a time unless ``ALLOW_MULTIPLE_LIBTPU_LOAD=1``
    is set before the process starts. The CUDA plugin describes only the GPUs that it can see.
    """

    def __init__(self, topology: str, message: str, fix: str) -> None:
        super().__init__(f"topology {topology!r}: the compiler reported: {message}", fix=fix)


class TooFewCpuDevices(PmapxError, RuntimeError, code="PMX214"):
    """This process cannot create more virtual CPU devices.

    JAX creates its CPU devices once. pmapx asks JAX for a second set, which this release of JAX
    does not support, or ``PMAPX_PUBLIC_ONLY=1`` disables.
    """

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(
            f"topology 'cpu:{wanted}' needs {wanted} CPU devices, but this process has {found}.",
            fix=f"set XLA_FLAGS=--xla_force_host_platform_device_count={wanted} before it starts.",
        )


class CannotRebuild(PmapxError, ValueError, code="PMX215"):
    """A function cannot be rebuilt for other devices.

    A pmapped function is mapped over them again. A jitted function is traced again with every mesh
    that it closes over replaced; a mesh elsewhere, such as in an attribute of an object, is not
    found. In that case, pass a function that builds it for given devices.
    """

    def __init__(self, function: str, problem: str) -> None:
        super().__init__(
            f"{function} cannot be rebuilt for other devices: {problem}.",
            fix="pass build=, a function that takes the devices and returns the pmapped function "
            "and its arguments.",
        )


class UnevenTopology(PmapxError, ValueError, code="PMX216"):
    """The number of devices in a topology is not divisible by the inner axes of a function.

    The first mesh axis, or the outermost pmap, grows with the number of devices. The inner axes
    keep their sizes, and their product must divide the number of devices.
    """

    def __init__(self, function: str, inner: int, count: int) -> None:
        super().__init__(
            f"{function} needs {inner} devices for its inner axes, and the topology has {count} "
            f"devices, which is not a multiple of {inner}.",
            fix=f"use a topology with a multiple of {inner} devices.",
        )


class ShapesDoNotFit(PmapxError, ValueError, code="PMX217"):
    """A function cannot be traced with the shapes that its arguments have on other devices.

    The mapped axis grows with the number of devices, and so does a sharded dimension of the batch.
    Sharded state keeps its shape, if the program shows that it is state: where it is gathered,
    contracted with a dimension of fixed size, or returned for the next call. To keep the shape of
    an argument, pass ``scale={"params": None}`` (``--fixed params``); to make one grow,
    ``scale={"batch": 0}``. A function that creates its own arrays needs ``build=``.
    """

    def __init__(
        self, function: str, count: int, grown: Sequence[str], error: BaseException
    ) -> None:
        changed = "; ".join(grown) or "no argument"
        reason = " ".join(str(error).split())[:400]
        super().__init__(
            f"{function} cannot be traced for {count} devices: {reason} (Changed: {changed}.)",
            fix='name what keeps its shape, scale={"state": None} or --fixed state; or pass '
            "build=, a function that takes the devices and returns the function and its arguments.",
        )


class UndividedState(PmapxError, ValueError, code="PMX218"):
    """State that is sharded over the devices cannot be divided among so many.

    Parameters and other state keep their global shape on more devices, so that each holds a smaller
    shard. A dimension must be a multiple of the number of devices along it.
    """

    def __init__(self, function: str, path: str, size: int, count: int) -> None:
        super().__init__(
            f"{function}: a sharded dimension of {path} has {size} elements, which {count} devices "
            "cannot share equally.",
            fix=f"use a topology with fewer devices; if {path} is a batch, "
            f'scale={{"{path}": 0}}, or --scale {path}=0.',
        )


class NoSuchArgument(PmapxError, ValueError, code="PMX219"):
    """An argument named in ``scale`` does not exist.

    Arguments have the names of the function's parameters; parts of them are written as in the
    report, such as ``state['params']``.
    """

    def __init__(self, function: str, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"{function} has no argument {name!r}.", fix=f"use one of {', '.join(known)}."
        )


class BadBuild(PmapxError, TypeError, code="PMX220"):
    """A ``build`` function did not return a function and its arguments.

    It takes a sequence of devices and returns the mapped function for them and a tuple of its
    arguments, arrays or ``jax.ShapeDtypeStruct``; a dict of keyword arguments may follow.
    """

    def __init__(self, function: str, made: object) -> None:
        super().__init__(
            f"build function {function} returned {type(made).__name__}.",
            fix="return (mapped_function, (argument, ...)).",
        )


class NoSuchBuild(PmapxError, ValueError, code="PMX221"):
    """The function that ``--build`` names cannot be imported.

    It is written as ``module:function``; the module is imported from the current folder, or as an
    installed one.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"--build {name}: {problem}.", fix="use --build module:function.")


class CannotAudit(PmapxError, TypeError, code="PMX691"):
    """The first argument of pmapx.audit is not a function.

    Pass the function and its arguments, ``pmapx.audit(step, state, batch)``, not the result of a
    call.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(
            f"audit expects a function, got {type(given).__name__}.",
            fix="pass the pmapped function and then its arguments: "
            "pmapx.audit(step, state, batch).",
        )


class UnknownWhatIf(PmapxError, ValueError, code="PMX692"):
    """The what_if option of pmapx.audit is unknown.

    The only value is ``"fsdp"``, the cost with parameters and optimizer state sharded over the data
    axis.
    """

    def __init__(self, given: Any) -> None:
        super().__init__(
            f"audit got what_if={given!r}.",
            fix='pass what_if="fsdp", or leave it out.',
        )
