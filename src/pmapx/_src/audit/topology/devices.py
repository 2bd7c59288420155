"""The devices of a target topology, by its name, for ahead-of-time compilation.

JAX's compilers need a description of the devices, not the devices themselves. The ``libtpu`` wheel
of JAX's ``tpu`` extra describes TPUs, the CUDA plugin GPUs, and CPU devices are virtual.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Iterator

import jax
from jax.experimental import topologies

from pmapx._src import errors, fastpath
from pmapx._src.audit.topology.names import FAMILIES, Topology, names_of, parse


def devices_of(topology: str) -> tuple[jax.Device, ...]:
    """Returns the devices of a topology, by its name: to lower and compile for, not to run on.

    ``cpu:64`` has virtual CPU devices, ``gpu:2x8`` machines of GPUs such as this one has.

    >>> len(devices_of("cpu:1"))
    1
    """
    return _devices(parse(topology))


def check(topology: Topology) -> None:
    """Raises an error if there is no such topology, or no compiler for it.

    A GPU is not touched, so that the program finds it free.
    """
    if topology.family != "gpu":
        _devices(topology)
        return
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    if not any("cuda" in plugin.name for plugin in plugins):
        raise errors.NoCompiler(topology.name, "JAX's CUDA plugin", "pip install 'jax[cuda12]'")


@functools.lru_cache(maxsize=64)
def _devices(topology: Topology) -> tuple[jax.Device, ...]:
    if topology.family == "cpu":
        return _cpu_devices(topology.shape[0])
    if topology.family == "gpu":
        return _gpu_devices(topology)
    return _tpu_devices(topology)


def _cpu_devices(count: int) -> tuple[jax.Device, ...]:
    try:
        here = jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX_PLATFORMS leaves them out.
        here = []
    if len(here) >= count:
        return tuple(here[:count])
    more = fastpath.more_cpu_devices(count)
    if more is None:
        raise errors.TooFewCpuDevices(count, len(here))
    return more


def _tpu_devices(topology: Topology) -> tuple[jax.Device, ...]:
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise errors.NoCompiler(topology.name, "libtpu", "pip install 'pmapx[tpu]'")
    name = f"{topology.family}:{'x'.join(map(str, topology.shape))}"
    options: dict[str, object] = dict(FAMILIES[topology.family].options)
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if math.prod(topology.shape) < 4:
        # By default a host has four chips.
        options["chips_per_host_bounds"] = [*topology.shape, *[1] * (3 - len(topology.shape))]
    try:
        with _alone_on_this_machine():
            found = topologies.get_topology_desc(name, platform="tpu", **options)
    except Exception as error:  # Whatever the compiler raises is quoted.
        message = str(error).splitlines()[0]
        if "INVALID_ARGUMENT" in message or "NOT_FOUND" in message:
            valid, problem = names_of(topology.family), f"libtpu reports: {message}"
            raise errors.UnknownTopology(topology.name, problem, valid) from None
        fix = "set ALLOW_MULTIPLE_LIBTPU_LOAD=1, or wait until the other process is done."
        raise errors.NoTopologyFromCompiler(topology.name, message, fix) from error
    return tuple(found.devices)


_WITHOUT_TPU = {
    # Otherwise libtpu asks Google's metadata server for its identity, and logs the failure.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Otherwise a second process that describes a topology is refused.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Only errors are logged to the terminal.
    "TPU_MIN_LOG_LEVEL": "2",
    "TPU_STDERR_LOG_LEVEL": "2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@contextlib.contextmanager
def _alone_on_this_machine() -> Iterator[None]:
    """Sets the environment for libtpu on a machine without TPUs while it loads."""
    # JAX sets this at its import on such a machine.
    if os.environ.get("TPU_SKIP_MDS_QUERY") != "1":
        yield
        return
    unset = {key: value for key, value in _WITHOUT_TPU.items() if key not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for key in unset:
            os.environ.pop(key, None)


def _gpu_devices(topology: Topology) -> tuple[jax.Device, ...]:
    machines, gpus = (1, *topology.shape) if len(topology.shape) == 1 else topology.shape
    try:
        # Slices (of fast links between machines), machines in each, and GPUs in each of those.
        found = topologies.get_topology_desc("", platform="cuda", topology=f"1x{machines}x{gpus}")
    except NotImplementedError:
        package = "JAX's CUDA plugin"
        raise errors.NoCompiler(topology.name, package, "pip install 'jax[cuda12]'") from None
    except Exception as error:
        message = str(error).splitlines()[0]
        fix = "run it on a machine with a GPU of that kind."
        raise errors.NoTopologyFromCompiler(topology.name, message, fix) from error
    return tuple(found.devices)
