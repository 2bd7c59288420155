"""Which rows of a map that spans several processes are whose.

Each process has a share of the map's devices, in the order in which the devices are listed, and
passes and gets the rows that lie on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pmapx._src import errors


def spans_processes(devices: Sequence[jax.Device]) -> bool:
    """Says whether some of ``devices`` are of another process than this one."""
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
    """Returns the size over all processes of an axis that has ``local_size`` rows in this one.

    Every process has to come to the same answer from what it has itself: where all have equally
    many devices, all pass equally many rows; where not, all of their devices are used.
    """
    counts = by_process(devices)
    if len(set(counts.values())) == 1:
        return local_size * len(counts)
    own = counts[jax.process_index()]
    if own == 0:
        raise errors.NoLocalDevices(jax.process_index(), sorted(counts))
    devices_a_row = own // local_size
    if own % local_size or any(count % devices_a_row for count in counts.values()):
        raise errors.UnevenProcessShards(function, argument, local_size, own, dict(counts))
    return len(devices) // devices_a_row


def choose(devices: Sequence[jax.Device], count: int) -> list[jax.Device]:
    """Returns ``count`` of the devices: the first ones, or the first ones of each process."""
    if count >= len(devices) or not spans_processes(devices):
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
    """Returns the part of ``mesh`` that is this process's; it must be a box."""
    here = jax.process_index()
    is_here = np.vectorize(lambda device: device.process_index == here)(mesh.devices)
    if not is_here.any():
        raise errors.NoLocalDevices(here, sorted(by_process(list(mesh.devices.flat))))
    box = np.ix_(*(np.unique(positions) for positions in np.nonzero(is_here)))
    if not is_here[box].all():
        raise errors.ShardAcrossProcesses(dict(mesh.shape), here)
    return Mesh(mesh.devices[box], mesh.axis_names, axis_types=mesh.axis_types)


def local_rows(mesh: Mesh) -> int:
    """Returns how many rows of the first axis of ``mesh`` are this process's, each whole."""
    rows, *inner = local_mesh(mesh).devices.shape
    if tuple(inner) != mesh.devices.shape[1:]:
        raise errors.ShardAcrossProcesses(dict(mesh.shape), jax.process_index())
    return rows
