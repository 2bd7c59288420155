"""Transferring batches to the devices before the program needs them."""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from pmapx._src import errors
from pmapx._src.arrays import device_put
from pmapx._src.mesh import context_mesh
from pmapx._src.trees import checked_leaves


def prefetch(
    iterator: Iterable[Any], size: int = 2, devices: device_put.Devices | None = None
) -> Iterator[Any]:
    """Yields the items of an iterator, transferred to the devices ``size`` items ahead.

    Transfers overlap with the computation on earlier items. Index ``i`` of the leading axis of
    every leaf is placed on device ``i``. An exception in the iterator is raised after the items
    before it. As with ``jax.device_put``, a CPU device may share the memory of a numpy array: yield
    a new one each time.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> batches = ({"x": np.full((jax.local_device_count(), 2), k)} for k in range(3))
      >>> sum(int(batch["x"].max()) for batch in pmapx.prefetch(batches))
      3

    Args:
      iterator: yields pytrees of arrays whose leading axis has size ``len(devices)``.
      size: how many items to transfer ahead; 2 is enough if transfers are faster than steps.
      devices: the devices, in the order of the leading axis; by default all local devices.

    Returns:
      An iterator over the same items, on the devices.
    """
    function = "prefetch"
    if isinstance(size, bool) or not hasattr(size, "__index__") or operator.index(size) < 1:
        raise errors.UnknownOption("size", size, "a positive integer", function)
    listed = device_put.checked_or_local(devices, function)
    if not isinstance(iterator, Iterable):
        raise errors.UnknownOption("iterator", iterator, "an iterable", function)
    return _ahead(iter(iterator), operator.index(size), listed)


def _ahead(source: Iterator[Any], size: int, devices: tuple[jax.Device, ...]) -> Iterator[Any]:
    queue: collections.deque[Any] = collections.deque()
    failure: Exception | None = None
    exhausted = False
    while True:
        while not exhausted and len(queue) < size:
            try:
                queue.append(_put(next(source), devices))
            except StopIteration:
                exhausted = True
            except Exception as error:
                failure, exhausted = error, True
        if not queue:
            break
        yield queue.popleft()
    if failure is not None:
        raise failure


def _put(item: Any, devices: tuple[jax.Device, ...]) -> Any:
    flat, structure = checked_leaves.concrete("prefetch", "item", item)
    for index, leaf in enumerate(flat):
        if np.shape(leaf)[:1] != (len(devices),):
            name, kind = checked_leaves.name("item", item, index), checked_leaves.abstract(leaf)
            raise errors.WrongLeadingAxis("prefetch", name, str(kind), len(devices))
    sharding = device_put.leading_axis_sharding(devices)
    with context_mesh.without_context_mesh():
        return jax.tree.unflatten(structure, jax.device_put(flat, sharding))
