"""A call of a map that spans processes: this process's rows in, this process's rows out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pmapx._src import errors, fastpath
from pmapx._src.map.inputs import Inputs
from pmapx._src.map.program import Executable, Program
from pmapx._src.map.program_builder import Programs
from pmapx._src.mesh import process_shards
from pmapx._src.multihost import agreement, host_local
from pmapx._src.trees.signature import Call, Signature


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What running a call gave.

    Attributes:
      result: what the program returned.
      executable: the program.
      can_repeat: whether the dispatch may run such calls by itself from now on.
    """

    result: Any
    executable: Executable
    can_repeat: bool


def over_all_processes(programs: Programs, call: Call) -> Call:
    """Returns the call with the shapes that its arguments have over all processes."""
    signature, passed = programs.over_all_processes(call)
    program = programs.program_for(signature, None)
    mesh, size = program.layout.mesh, program.mapping.outermost.size
    rows = size * process_shards.local_rows(mesh) // len(mesh.devices)
    if passed is not None and rows != passed:
        argument, _, _ = program.mapping.describe_size()
        raise errors.LocalSizeMismatch(
            programs.function, argument, passed, rows, size, jax.process_index()
        )
    return dataclasses.replace(call, signature=signature)


def placed(
    inputs: Inputs, call: Call, executable: Executable, donated: Sequence[bool]
) -> tuple[list[Any], bool]:
    """Returns the leaves as the program takes them, each in its place.

    Also says whether the dispatch may place such leaves by itself.
    """
    leaves, moved = inputs.place(call, executable, wanted(call, executable), donated)
    as_shards, mesh = executable.program.layout.as_shards, executable.mesh
    can_repeat = not any(
        donated[index]
        or fastpath.takes_as_placed(call.leaves[index], mesh, process_shards.local_mesh(mesh))
        for index in moved
    ) and not (as_shards and any(map(host_local.is_global, call.leaves)))
    stitch = host_local.to_shards if as_shards else host_local.to_global
    return list(map(stitch, leaves, executable.in_shardings)), can_repeat


def wanted(call: Call, executable: Executable) -> list[Any]:
    """Returns the sharding that each leaf of a call should have, host-local or global."""
    return [
        sharding if host_local.is_global(leaf) else host_local.local_sharding(sharding)
        for leaf, sharding in zip(call.leaves, executable.in_shardings, strict=True)
    ]


def check_agreement(programs: Programs, call: Call) -> None:
    """Compares a call between the processes: what is called, and what all must pass alike."""
    if len(process_shards.by_process(programs.devices())) != jax.process_count():
        # The processes that are not part of the map would have to take part in the comparison.
        expected = "False for a map over some of the processes"
        raise errors.UnknownOption("check_replicas", True, expected)
    in_axes, names = programs.in_axes(call.signature)
    static = [repr(value) for _, value in call.signature.static]
    shapes = [f"{names[k]}: {leaf}" for k, leaf in enumerate(call.signature.leaves)]
    facts = [f"a call of {programs.function} over axis {programs.options.axis_name!r}"]
    facts += [f"{programs.function} with static arguments {', '.join(static)}"] if static else []
    facts += [f"{programs.function} with {shape}" for shape in shapes]
    difference = agreement.first_difference(facts)
    if difference is not None:
        raise errors.CallsDiffer(programs.function, difference)
    shared = [
        index
        for index, (leaf, axis) in enumerate(zip(call.leaves, in_axes, strict=True))
        if axis is None and not host_local.is_global(leaf)
    ]
    difference = agreement.first_difference([agreement.digest_of(call.leaves[k]) for k in shared])
    if difference is not None:
        argument = names[shared[difference.position]]
        raise errors.ReplicasDiffer(programs.function, argument, difference)


def local_program(executable: Executable) -> fastpath.LocalProgram:
    """Returns a program over shards as this process runs it."""
    return fastpath.LocalProgram(
        executable.compiled,
        tuple(process_shards.local_mesh(executable.mesh).devices.flat),
        tuple(map(host_local.local_sharding, executable.in_shardings)),
    )


def can_run_as_shards(programs: Programs, signature: Signature) -> bool:
    """Says whether a program over shards would do: its results can be read, and rows are wanted."""
    if programs.options.view == "global":
        return False
    mesh = programs.program_for(signature, None).layout.mesh
    return fastpath.can_run_locally(tuple(process_shards.local_mesh(mesh).devices.flat))


def delete_donated(call: Call, donated: Sequence[bool]) -> None:
    """Deletes donated arguments, whose memory is the global arrays' and so the results' by now."""
    for leaf, is_donated in zip(call.leaves, donated, strict=True):
        if is_donated and isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()


def seen_from_here(programs: Programs, program: Program, result: Any) -> Any:
    """Returns a result as the user wants to see it: this process's rows, or all."""
    if programs.options.view == "global":
        return result
    leaves, tree = jax.tree.flatten(result)
    shardings = program.out_shardings(tree, leaves)
    take_apart = host_local.from_shards if program.layout.as_shards else host_local.to_local
    rows = [
        fastpath.weakly_typed(take_apart(leaf, sharding))
        if getattr(leaf, "weak_type", False)
        else take_apart(leaf, sharding)
        for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    return jax.tree.unflatten(tree, rows)


def shapes_from_here(programs: Programs, program: Program, out_info: Any) -> Any:
    """Returns the shapes of a result as the user sees it, given those over all processes."""
    if programs.options.view == "global":
        return out_info
    leaves, tree = jax.tree.flatten(out_info)
    shapes = [
        jax.ShapeDtypeStruct(
            host_local.local_shape(leaf.shape, sharding),
            leaf.dtype,
            sharding=host_local.local_sharding(sharding),
        )
        for leaf, sharding in zip(leaves, program.out_shardings(tree, leaves), strict=True)
    ]
    return jax.tree.unflatten(tree, shapes)
