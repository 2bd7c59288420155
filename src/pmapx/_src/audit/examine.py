"""An audit from top to bottom: the function is compiled, its program read, and findings drawn."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from pmapx._src import errors
from pmapx._src.audit import donation, findings
from pmapx._src.audit import subject as subjects
from pmapx._src.audit import what_if as what_ifs
from pmapx._src.audit.hlo import collectives, dataflow, parser
from pmapx._src.audit.report.audit_report import (
    AuditedFunction,
    AuditReport,
    Exchange,
    History,
    Leaf,
    MovedInput,
    ShardRead,
)
from pmapx._src.audit.subject import Subject
from pmapx._src.audit.topology import interconnect
from pmapx._src.audit.topology.compile_for import Build, built, memory_of
from pmapx._src.audit.topology.compile_for import scaling as scaling_of
from pmapx._src.audit.topology.growing_arguments import Scale, check_names
from pmapx._src.audit.topology.names import several
from pmapx._src.map.cache_info import CacheInfo
from pmapx._src.map.program_builder import builder_of
from pmapx._src.mesh import resharding
from pmapx._src.replication import array_shardings, traced_program
from pmapx._src.replication.shard_map_body import Origins
from pmapx._src.trees import names as describe

COLLECTIVES = (
    "psum", "psum2", "psum_invariant", "pmax", "pmin", "pmean", "all_gather",
    "all_gather_invariant", "all_gather_reduced", "all_to_all", "ragged_all_to_all", "ppermute",
    "pshuffle", "psum_scatter", "reduce_scatter", "pbroadcast", "pgather", "unreduced_psum",
    "unreduced_reduce_scatter",
)  # fmt: skip
"""JAX's names for the collectives that users write."""
PART = "part of one over slices"


def report_on(
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    topology: str | None,
    scaling: str | Sequence[str] = (),
    build: Build | None = None,
    scale: Scale | None = None,
    what_if: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> AuditReport:
    """Audits one function for one set of arguments."""
    if what_if not in (None, "fsdp"):
        raise errors.UnknownWhatIf(what_if)
    topologies = several(scaling)
    options = {"kwargs": kwargs, "build": build, "scale": scale}
    if build is not None and topology is None:
        f, args, kwargs = built(build, jax.devices())
    if not callable(f) and (build is None or f is not None):
        raise errors.CannotAudit(f)
    if f is not None:
        known = [*describe.parameter_names(f), *kwargs]
        check_names(scale, known, describe.function_name(f))
    is_pmapped = builder_of(f) is not None
    if topology is not None:
        subject = subjects.of_topology(f, args, topology, **options)
    elif is_pmapped:
        subject = subjects.of_pmapped(f, args, kwargs)
    else:
        subject = subjects.of_jitted(f, args, kwargs)
    if topologies:
        found = scaling_of(f, args, topologies, progress=progress, **options)
        subject = dataclasses.replace(subject, scaling=found)
    history = History(traces=None)
    if is_pmapped:
        history = history_of(f.cache_info(), subject)
        if topology is not None:  # For a target topology, input placement does not matter.
            history = dataclasses.replace(history, moved=())
    assumptions = interconnect.fabric_of(subject.devices).assumptions()
    function = examine(subject, history, what_if is not None)
    return assemble([function], topology=topology, assumptions=assumptions)


def examine(subject: Subject, history: History, with_fsdp: bool = False) -> AuditedFunction:
    """Audits a compiled program."""
    arguments, outputs = _leaves(subject)
    function = AuditedFunction(
        name=subject.name,
        kind=subject.kind,
        place=subject.place,
        axis_sizes=subject.axis_sizes,
        device_kind=subject.device_kind,
        arguments=tuple(arguments),
        outputs=tuple(outputs),
        exchanges=tuple(exchanges(subject)),
        memory=None if subject.compiled is None else memory_of(subject.compiled),
        donations=tuple(donation.donations(subject.donated, arguments, outputs)),
        history=history,
        compile_seconds=subject.compile_seconds,
        scaling=subject.scaling,
        capacity=subject.capacity,
        grown=subject.grown,
        exceeded=subject.exceeded,
        what_if=what_ifs.fsdp(subject, arguments) if with_fsdp else None,
    )
    return dataclasses.replace(function, findings=findings.about(function))


def assemble(
    functions: Sequence[AuditedFunction],
    shard_reads: Sequence[ShardRead] = (),
    topology: str | None = None,
    skipped: Sequence[str] = (),
    assumptions: Sequence[str] = (),
) -> AuditReport:
    """Returns the report on functions."""
    report = AuditReport(
        functions=tuple(functions),
        shard_reads=tuple(shard_reads),
        assumptions=tuple(dict.fromkeys(assumptions)),
        jax_version=jax.__version__,
        topology=topology,
        skipped=tuple(skipped),
    )
    return dataclasses.replace(report, findings=findings.all_in(report))


def history_of(info: CacheInfo, subject: Subject) -> History:
    """Returns what ``cache_info()`` reports as a part of the report."""
    known = dict(zip(subject.in_names, range(len(subject.in_names)), strict=True))
    moved = []
    for move in info.moved:
        path, size, index = move.argument, None, known.get(move.argument)
        if index is not None:
            path, kind = subject.in_paths[index], subject.in_types[index]
            size = array_shardings.size_in_bytes(kind.shape, kind.dtype)
        moved.append(MovedInput(path, move.reason, move.count, size))
    return History(info.calls, info.traces, info.compiles, info.reasons, tuple(moved))


def exchanges(subject: Subject) -> Iterator[Exchange]:
    """Yields the collectives of the compiled program, each with an estimate of its time."""
    if subject.compiled is None:
        return
    fabric = interconnect.fabric_of(subject.devices)
    module = parser.parse(subject.compiled.as_text() or "")
    sources, together = dataflow.gathered_arguments(module), dataflow.mergeable(module)
    numbers = dataflow.order(module)
    all_found = collectives.collectives_of(module, subject.axis_sizes, fabric.slice_of)
    ordered = sorted(all_found, key=lambda each: numbers.get(each.name, len(numbers)))
    # The TPU compiler splits collectives over slices, and the parts have no metadata.
    is_split = any(found.between == found.sent for found in ordered)
    for found in ordered:
        is_part = is_split and found.operation is None
        origin = dataflow.NOWHERE if is_part else dataflow.origin(module, found.name)
        names = re.findall(r"[A-Za-z_]\w*", (origin.operation or "").rpartition("/")[2])
        known = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        known |= {
            "name": "",  # It may differ between two compilations of one program.
            "place": origin.place,
            "operation": PART if is_part else ", ".join(dict.fromkeys(names)) or None,
        }
        yield Exchange(
            **known,
            # XLA combines collectives, and may have added one of them.
            is_written=is_part or (bool(names) and all(name in COLLECTIVES for name in names)),
            seconds=fabric.seconds(
                found.kind, found.sent, found.group_size, found.between, found.slices
            ),
            argument=sources.get(found.name),
            merges_with=None if is_part else together.get(found.name),
        )


def _leaves(subject: Subject) -> tuple[list[Leaf], list[Leaf]]:
    differs = [
        array_shardings.axes_that_differ(value, sharding)
        for value, sharding in zip(subject.values, subject.in_shardings, strict=True)
    ]
    pairs = donation.carried(subject.arguments, subject.out_types)
    carried = dict(pairs)
    # A function that only copies or places a tree is not a step.
    is_step = not donation.only_copies(subject.jaxpr.jaxpr)
    equal = {index for index, axes in enumerate(differs) if axes is not None and not axes}
    constant = {k for k in equal if not array_shardings.could_differ(subject.values[k])}
    only_read = equal - constant - carried.keys()
    # None for an argument of which only the shape was passed, or whose equal shards prove nothing.
    differs = [None if k in constant | only_read else axes for k, axes in enumerate(differs)]
    out_paths = subjects.output_paths(subject.out_types)
    given = [
        traced_program.Argument(
            path, sharding, axes, None if subject.varying is None else subject.varying[index]
        )
        for index, (path, sharding, axes) in enumerate(
            zip(subject.in_paths, subject.in_shardings, differs, strict=True)
        )
    ]
    # Values were compared; with shapes alone, what stays equal if it starts equal is assumed equal.
    states = [pair for pair in pairs if not differs[pair[0]]]
    kept = traced_program.kept_equal(subject.jaxpr, given, states)
    split = traced_program.of_program(subject.jaxpr, given).inputs
    has_batch = any(axes and index not in kept for index, axes in enumerate(split))
    assumed = [k for k in kept if differs[k] is None and (has_batch or k in constant)]
    given = traced_program.with_equal(given, assumed)
    found = traced_program.of_program(subject.jaxpr, given).outputs
    # State that varies because it varied before explains nothing: find what makes it vary first.
    first = traced_program.of_program(
        subject.jaxpr, traced_program.with_equal(given, dict(states))
    ).outputs
    arguments = [
        dataclasses.replace(
            _argument(subject, index, split[index], given[index].differs),
            is_compared=differs[index] is not None,
            is_constant=index in constant,
            is_only_read=index in only_read,
            carried=out_paths[carried[index]] if index in carried and is_step else None,
            is_kept_equal=index in kept,
        )
        for index in range(len(subject.in_types))
    ]
    out_types = jax.tree.leaves(subject.out_types)
    out_shardings = _out_shardings(subject, pairs)
    outputs = [
        _output(*of_one)
        for of_one in zip(out_paths, out_types, out_shardings, found, first, strict=True)
    ]
    return arguments, outputs


def _out_shardings(subject: Subject, carried: Sequence[tuple[int, int]]) -> list[Any]:
    """Returns the shardings of the outputs; of a program that does not fit, those of its state."""
    kinds, tree = jax.tree.flatten(subject.out_types)
    if subject.compiled is None:
        known = {output: subject.in_shardings[argument] for argument, output in carried}
        return [known.get(index) for index in range(len(kinds))]
    found = subjects.flat_shardings(subject.compiled.output_shardings, tree)
    return subjects.shardings_on(subject.mesh, found, [kind.shape for kind in kinds])


def _argument(
    subject: Subject, index: int, axes_of_specs: frozenset[Any], differs: frozenset[Any] | None
) -> Leaf:
    kind, sharding = subject.in_types[index], subject.in_shardings[index]
    leaf = _leaf(subject.in_paths[index], kind, sharding)
    named = tuple(axis for axes in leaf.axes_by_dimension for axis in axes)
    if subject.varying is not None:
        axes_of_specs = subject.varying[index]
    if differs is None:
        varies = named or tuple(map(str, axes_of_specs))
    else:
        varies = tuple(sorted(map(str, differs)))
    value = subject.values[index] if index < len(subject.values) else None
    moved = reason_to_move(value, sharding)
    if index in subject.unused:
        return dataclasses.replace(leaf, bytes_a_device=0, is_unused=True)
    return _with_copies(dataclasses.replace(leaf, varies_over=varies, moved=moved))


def reason_to_move(x: Any, wanted: Any) -> str | None:
    """Returns why an array has to be transferred for a program; None if it has not.

    Arrays of the host are transferred in any case.
    """
    if not isinstance(x, jax.Array) or wanted is None or x.is_deleted():
        return None
    if not resharding.is_placed(x, wanted):
        return resharding.reason_to_transfer(x, wanted)
    found = x.sharding
    if found.num_devices == 1 < wanted.num_devices and not found.is_equivalent_to(wanted, x.ndim):
        (device,) = found.device_set
        return f"it is on {device} only"
    return None


def _output(
    path: str, kind: Any, sharding: Any, held: traced_program.Held, first: traced_program.Held
) -> Leaf:
    leaf = _leaf(path, kind, sharding)
    found, in_first = _axes_as(leaf, held, sharding), _axes_as(leaf, first, sharding)
    since = [origin for origin in (*in_first.values(), *found.values()) if origin]
    return _with_copies(
        dataclasses.replace(
            leaf,
            varies_over=tuple(sorted(map(str, found))),
            since=since[0] if found and since else None,
            made_at=held.made_at if found else None,
        )
    )


def _axes_as(leaf: Leaf, held: traced_program.Held, sharding: Any) -> Origins:
    """Returns the axes along which an output varies, in its own sharding."""
    if isinstance(sharding, NamedSharding):
        return held.axes_under(sharding.mesh, sharding.spec)
    split = [axis for axes in leaf.axes_by_dimension for axis in axes]
    return {**dict.fromkeys(split, ""), **held.unequal_replicas}


def _leaf(path: str, kind: Any, sharding: Any) -> Leaf:
    held = array_shardings.shard_shape(kind.shape, sharding)
    return Leaf(
        path=path,
        shape=tuple(kind.shape),
        dtype=str(kind.dtype),
        shard_shape=held,
        axes_by_dimension=array_shardings.axes_by_dimension(kind.shape, sharding),
        bytes_a_device=array_shardings.size_in_bytes(held, kind.dtype),
    )


def _with_copies(leaf: Leaf) -> Leaf:
    if not leaf.is_stacked_copies:
        return leaf
    parts = math.prod(
        size // part for size, part in zip(leaf.shape, leaf.shard_shape, strict=True) if part
    )
    return dataclasses.replace(leaf, stacked_copies=(parts - 1) * leaf.bytes_a_device)
