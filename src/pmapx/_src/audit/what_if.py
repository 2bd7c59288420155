"""What a step would cost with FSDP: its state sharded over the data axis, the program unchanged.

A jitted step is compiled again with other shardings. A pmapped body, or that of a ``shard_map``,
sees only shards; if it is batch-parallel, the function of the global batch that it equals is
compiled in its place.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapx._src import errors
from pmapx._src.audit import donation
from pmapx._src.audit.hlo import collectives
from pmapx._src.audit.report.audit_report import Leaf, Memory
from pmapx._src.audit.report.what_if_table import Cost, WhatIf, groups_of
from pmapx._src.audit.subject import PerDevice, Subject
from pmapx._src.audit.topology import interconnect
from pmapx._src.audit.topology.compile_for import compiled_or_needed, memory_of
from pmapx._src.audit.topology.retrace_jit import Placed
from pmapx._src.batch_parallel.global_function import global_function
from pmapx._src.batch_parallel.traces import PER_DEVICE, BatchAxis
from pmapx._src.batch_parallel.verdict import decide
from pmapx._src.mesh.partition_specs import entry_axes, spec_axes

SMALLEST = 1024
"""Arrays with fewer elements stay replicated: their collectives would cost more than they save."""


class _CannotShardError(Exception):
    """Why there are no figures."""


def fsdp(step: Subject, leaves: Sequence[Leaf]) -> WhatIf:
    """Returns the cost of a step as it is and with FSDP, or why that is not known."""
    per_device = step.per_device
    try:
        if not isinstance(step.mesh, Mesh) or step.mesh.size < 2:
            raise _CannotShardError("it runs on one device")
        if isinstance(per_device, str):
            raise _CannotShardError(per_device)
        if per_device is not None:
            return _of_body(step, leaves, per_device)
        return _of_jit(step, leaves)
    except _CannotShardError as error:
        return WhatIf(reason=str(error))
    except errors.PmapxError as error:
        return WhatIf(reason=" ".join(str(error).partition("\n  code:")[0].split()))
    except Exception as error:  # JAX refuses some shardings, as of contractions over Explicit axes.
        first = (str(error).splitlines() or [""])[0]
        return WhatIf(reason=f"it cannot be compiled this way: {type(error).__name__}: {first}")


def sharded_spec(
    shape: Sequence[int], spec: PartitionSpec, axis: str, size: int
) -> PartitionSpec | None:
    """Returns a spec that also shards the largest dimension that is divisible.

    None if none is, or if the array is small. This is the rule of ``pmapx migrate --fsdp`` too.

    >>> sharded_spec((64, 96), PartitionSpec(), "data", 8) == PartitionSpec(None, "data")
    True
    >>> sharded_spec((63, 95), PartitionSpec(), "data", 8) is None
    True
    >>> sharded_spec((2,), PartitionSpec(), "data", 2) is None  # The two words of a key.
    True
    """
    if math.prod(shape) < SMALLEST:
        return None
    entries = [*spec, *[None] * len(shape)][: len(shape)]
    free = [k for k, n in enumerate(shape) if not entry_axes(entries[k]) and n % size == 0]
    if not free:
        return None
    entries[max(free, key=lambda k: (shape[k], -k))] = axis
    while entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _of_jit(step: Subject, known: Sequence[Leaf]) -> WhatIf:
    """Compiles a jitted step again, with its state sharded."""
    axis, size = _data_axis(step, known)
    shards: dict[int, PartitionSpec] = {}
    kept: list[int] = []

    def placed(given: Placed) -> Placed:
        mesh = given.mesh
        axis_size = mesh.shape[axis]
        leaves, outputs = list(given.leaves), list(given.outputs)
        for index, leaf in enumerate(leaves):
            own = leaf.sharding.spec if leaf.sharding is not None else PartitionSpec()
            if known[index].is_unused or axis in spec_axes(own):
                continue
            spec = sharded_spec(leaf.shape, own, axis, axis_size)
            if spec is None:
                kept.append(index)
                continue
            shards[index] = spec
            sharding = NamedSharding(mesh, spec)
            leaves[index] = leaf.update(sharding=sharding)
            if index in given.carried:
                outputs[given.carried[index]] = sharding
        return Placed(mesh, leaves, outputs, given.carried)

    assert step.again is not None
    resharded = step.again(reshard=placed)
    if not shards:
        raise _CannotShardError(f"nothing is replicated over {axis} that could be sharded")
    return _compared(step, known, (axis, size), shards, kept, resharded.compiled)


def _data_axis(step: Subject, known: Sequence[Leaf]) -> tuple[str, int]:
    """Returns the mesh axis of the batch: one that shards an argument that is not state."""
    for leaf in sorted(known, key=lambda leaf: leaf.carried is not None):
        for axes in leaf.axes_by_dimension:
            if axes:
                return axes[0], step.mesh.shape[axes[0]]
    raise _CannotShardError("no argument is sharded: there is no data axis")


def _of_body(step: Subject, known: Sequence[Leaf], per_device: PerDevice) -> WhatIf:
    """Compiles the function of the global batch that a body equals."""
    if len(step.mesh.axis_names) > 1:
        raise _CannotShardError("its mesh has several axes")
    (axis,), n = step.mesh.axis_names, step.mesh.size
    args, kwargs = step.arguments
    flat, tree = jax.tree.flatten((*args, kwargs))
    local, batch_axes, global_ = [], [], []
    assumed = []
    for leaf, value, k in zip(known, flat, per_device.dimensions, strict=True):
        shape, batch_axis = list(leaf.shape), cast(BatchAxis, k)
        if k is not None and per_device.is_stacked:
            del shape[k]
            is_state = leaf.is_equal or leaf.is_only_read
            batch_axis = None if is_state else 0 if shape else PER_DEVICE
            if leaf.is_only_read:
                assumed.append(leaf.path)
        elif k is not None:
            shape[k] //= n
        dtype = value.dtype if hasattr(value, "dtype") else jax.typeof(value).dtype
        local.append(jax.ShapeDtypeStruct(tuple(shape), dtype))
        batch_axes.append(batch_axis)
        if isinstance(batch_axis, int):
            shape[batch_axis] *= n
        global_.append(jax.ShapeDtypeStruct(tuple(shape), dtype))
    verdict = decide(
        per_device.body, jax.tree.unflatten(tree, local), jax.tree.unflatten(tree, batch_axes),
        axis_name=per_device.axis, axis_size=n,
    )  # fmt: skip
    if not verdict.is_batch_parallel:
        why = "; ".join(dict.fromkeys(map(str, verdict.reasons)))
        raise _CannotShardError(f"its body is not a function of the global batch: {why}")
    shards: dict[int, PartitionSpec] = {}
    kept = []
    specs = []
    for index, (array, batch_axis) in enumerate(zip(global_, batch_axes, strict=True)):
        if isinstance(batch_axis, int):
            specs.append(PartitionSpec(*[None] * batch_axis, axis))
            continue
        spec = sharded_spec(array.shape, PartitionSpec(), axis, n)
        if spec is None:
            kept.append(index)
        else:
            shards[index] = spec
        specs.append(spec or PartitionSpec())
    if not shards:
        raise _CannotShardError(
            f"no argument that is equal on all devices has {SMALLEST:,} elements or more and a "
            f"dimension that {n} divides"
        )
    placed = [
        array.update(sharding=NamedSharding(step.mesh, spec))
        for array, spec in zip(global_, specs, strict=True)
    ]
    function, arguments = global_function(verdict), jax.tree.unflatten(tree, placed)
    outputs, out_tree = jax.tree.flatten(jax.eval_shape(function, *arguments))
    out_shardings: list[Any] = [None] * len(outputs)
    result = jax.tree.unflatten(out_tree, outputs)
    for argument, output in donation.carried((arguments[:-1], arguments[-1]), result):
        out_shardings[output] = placed[argument].sharding
    jitted = jax.jit(
        lambda *leaves: function(*jax.tree.unflatten(tree, leaves)),
        donate_argnums=tuple(k for k, is_donated in enumerate(step.donated) if is_donated),
        out_shardings=jax.tree.unflatten(out_tree, out_shardings),
    )
    compiled, _ = compiled_or_needed(jitted.trace(*placed).lower())
    found = _compared(step, known, (axis, n), shards, kept, compiled)
    return dataclasses.replace(found, assumed=tuple(assumed))


def _compared(
    step: Subject,
    leaves: Sequence[Leaf],
    over: tuple[str, int],
    shards: dict[int, PartitionSpec],
    kept: Sequence[int],
    compiled: Any,
) -> WhatIf:
    axis, size = over
    states = [*shards, *kept]
    groups = groups_of([leaves[index].path for index in states])
    before: collections.Counter[str] = collections.Counter()
    after: collections.Counter[str] = collections.Counter()
    for index, leaf in enumerate(leaves):
        name = groups.get(leaf.path, "other arguments")
        before[name] += leaf.bytes_a_device
        after[name] += leaf.bytes_a_device // (size if index in shards else 1)
    arrays = [leaves[index].path for index in kept if leaves[index].bytes_a_device > 8]
    return WhatIf(
        axis,
        size,
        before=_cost(step.mesh, step.compiled, before),
        after=_cost(step.mesh, compiled, after),
        sharded=tuple(leaves[index].path for index in shards),
        kept=tuple(arrays),
    )


def _cost(mesh: Mesh, compiled: Any, arguments: dict[str, int]) -> Cost | None:
    if compiled is None:
        return None
    fabric = interconnect.fabric_of(list(mesh.devices.flat))
    sizes = {str(name): size for name, size in mesh.shape.items()}
    found = collectives.collectives(compiled.as_text() or "", sizes, fabric.slice_of)
    times = [
        fabric.seconds(each.kind, each.sent, each.group_size, each.between, each.slices)
        for each in found
    ]
    weighted = [t * each.times_at_least for t, each in zip(times, found, strict=True) if t]
    memory = memory_of(compiled) or Memory(0, 0, 0, 0)
    return Cost(
        {name: size for name, size in arguments.items() if size},
        memory.outputs - memory.aliases,
        memory.temporaries,
        memory.total,
        collectives.counts(found),
        sum(each.sent_in_a_call for each in found),
        None if None in times or not times else sum(weighted),
    )
