"""The shards of a multi-process pmap that belong to each process.

Each process has some of the devices, in the order in which they are listed, and passes and gets the
shards that are on them.
"""

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pmapx._src import errors


def is_multi_process(devices: Sequence[jax.Device]) -> bool:
    if jax.process_count() == 1:
        return False
    here = jax.process_index()
    return any(device.process_index != here for device in devices)


def by_process(devices: Sequence[jax.Device]) -> Counter[int]:
    """Returns how many of ``devices`` each process has."""
    return Counter(device.process_index for device in devices)


def global_size(
    function: str, argument: str, local_size: int, devices: Sequence[jax.Device]
) -> int:
    """Returns the global size of an axis that has ``local_size`` in this process.

    Every process has to find the same answer by itself: where all have equally many devices, all
    pass the same size; where not, all of their devices are used.
    """
    counts = by_process(devices)
    if len(set(counts.values())) == 1:
        return local_size * len(counts)
    own = counts[jax.process_index()]
    if own == 0:
        raise errors.NoLocalDevices(jax.process_index(), sorted(counts))
    devices_each = own // local_size
    if own % local_size or any(count % devices_each for count in counts.values()):
        raise errors.UnevenProcessShards(function, argument, local_size, own, dict(counts))
    return len(devices) // devices_each


def choose(devices: Sequence[jax.Device], count: int) -> list[jax.Device]:
    """Returns ``count`` of the devices: the first ones, or the first ones of each process."""
    if count >= len(devices) or not is_multi_process(devices):
        return list(devices[:count])
    counts = by_process(devices)
    share, rest = divmod(count, len(counts))
    if rest or share > min(counts.values()):
        raise errors.UnevenProcessShards("pmap", "the global array", count, share, dict(counts))
    taken: Counter[int] = Counter()
    chosen = []
    for device in devices:
        taken[device.process_index] += 1
        if taken[device.process_index] <= share:
            chosen.append(device)
    return chosen


def local_mesh(mesh: Mesh) -> Mesh:
    here = jax.process_index()
    is_here = np.vectorize(lambda device: device.process_index == here)(mesh.devices)
    if not is_here.any():
        raise errors.NoLocalDevices(here, sorted(by_process(list(mesh.devices.flat))))
    box = np.ix_(*(np.unique(positions) for positions in np.nonzero(is_here)))
    if not is_here[box].all():
        raise errors.ShardAcrossProcesses(dict(mesh.shape), here)
    return Mesh(mesh.devices[box], mesh.axis_names, axis_types=mesh.axis_types)


def local_size(mesh: Mesh) -> int:
    """Returns the size of this process's part of the first axis of ``mesh``."""
    size, *inner = local_mesh(mesh).devices.shape
    if tuple(inner) != mesh.devices.shape[1:]:
        raise errors.ShardAcrossProcesses(dict(mesh.shape), jax.process_index())
    return size
