"""Devices that are not there: topologies by name, and functions built again for them."""

from __future__ import annotations

from collections.abc import Sequence

from pmapx._src.errors.base import PmapxError


class UnknownTopology(PmapxError, ValueError, code="PMX211"):
    """A topology's name is not known, or there is no such shape.

    A TPU topology is a family and the shape of a slice in chips, as ``v5e:16x16`` or
    ``v5p:8x8x16``, and ``4x v5e:16x16`` for several slices. ``cpu:64`` is 64 virtual CPU devices,
    and ``gpu:2x8`` two machines of eight GPUs each.
    """

    def __init__(self, name: object, problem: str, valid: Sequence[str]) -> None:
        super().__init__(
            f"topology {name!r}: {problem}.", fix=f"name one such as {', '.join(valid)}."
        )


class NoCompiler(PmapxError, RuntimeError, code="PMX212"):
    """The compiler for a topology is not installed.

    Programs for TPUs are compiled by the ``libtpu`` of JAX's ``tpu`` extra, a wheel that needs no
    TPU; those for GPUs by JAX's CUDA plugin, which needs one GPU of the kind.
    """

    def __init__(self, topology: str, package: str, install: str) -> None:
        super().__init__(
            f"topology {topology!r} needs {package}, which is not installed here.",
            fix=f"`{install}`.",
        )


class NoTopologyFromCompiler(PmapxError, RuntimeError, code="PMX213"):
    """The compiler for a topology is installed, but gave no description of the topology.

    It may be busy: libtpu lets one process in at a time unless ``ALLOW_MULTIPLE_LIBTPU_LOAD=1`` is
    set before it starts. For GPUs, the CUDA plugin describes those that it can see.
    """

    def __init__(self, topology: str, said: str, fix: str) -> None:
        super().__init__(f"topology {topology!r}: the compiler said: {said}", fix=fix)


class TooFewCpuDevices(PmapxError, RuntimeError, code="PMX214"):
    """Virtual CPU devices cannot be added to this process any more.

    JAX makes its CPU devices once. pmapx asks JAX for a second set, which this release does not
    give, or which ``PMAPX_PUBLIC_ONLY=1`` forbids.
    """

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(
            f"topology 'cpu:{wanted}' needs {wanted} CPU devices, and this process has {found}.",
            fix=f"start it with XLA_FLAGS=--xla_force_host_platform_device_count={wanted}.",
        )


class CannotRebuild(PmapxError, ValueError, code="PMX215"):
    """A function cannot be built again for other devices.

    A function of ``pmapx.pmap`` or ``jax.pmap`` is mapped again over them. One of ``jax.jit`` is
    traced again with each mesh that it closes over replaced; a mesh that lies elsewhere, in an
    object's attribute say, is not found. Pass a function of the devices then, which builds it.
    """

    def __init__(self, function: str, problem: str) -> None:
        super().__init__(
            f"{function} cannot be built for other devices: {problem}.",
            fix="pass build=, a function that takes the devices and returns the mapped function "
            "and its arguments.",
        )


class UnevenTopology(PmapxError, ValueError, code="PMX216"):
    """The devices of a topology do not divide as a function needs them.

    The first axis of a mesh, or the outermost pmap, grows with the number of devices; the inner
    ones keep their sizes, and their product has to divide the number of devices.
    """

    def __init__(self, function: str, inner: int, count: int) -> None:
        super().__init__(
            f"{function} maps inner axes over {inner} devices, and {count} devices are no multiple "
            "of that.",
            fix="name a topology of another size.",
        )
