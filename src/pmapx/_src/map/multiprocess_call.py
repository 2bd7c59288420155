"""A multi-process call: host-local arrays in, a program on global ones, host-local arrays out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pmapx._src import errors, fastpath
from pmapx._src.map.inputs import InputPlacer
from pmapx._src.map.program import Executable, Program
from pmapx._src.map.program_builder import ProgramBuilder
from pmapx._src.mesh import process_shards
from pmapx._src.multihost import agreement, host_local
from pmapx._src.trees.signature import Call, Signature


def check_agreement(builder: ProgramBuilder, call: Call) -> None:
    """Compares a call between the processes: its function, shapes and replicated arguments."""
    if len(process_shards.by_process(builder.devices())) != jax.process_count():
        # The comparison is a collective of all processes.
        expected = "False for a pmap over the devices of some processes"
        raise errors.UnknownOption("check_replicas", True, expected)
    in_axes, names = builder.in_axes(call.signature)
    static = [repr(value) for _, value in call.signature.static]
    shapes = [f"{names[k]}: {leaf}" for k, leaf in enumerate(call.signature.leaves)]
    facts = [f"a call of {builder.function} over axis {builder.options.axis_name!r}"]
    facts += [f"{builder.function} with static arguments {', '.join(static)}"] if static else []
    facts += [f"{builder.function} with {shape}" for shape in shapes]
    difference = agreement.first_difference(facts)
    if difference is not None:
        raise errors.CallsDiffer(builder.function, difference)
    replicated = [
        index
        for index, (leaf, axis) in enumerate(zip(call.leaves, in_axes, strict=True))
        if axis is None and not host_local.is_global(leaf)
    ]
    difference = agreement.first_difference(
        [agreement.digest_of(call.leaves[k]) for k in replicated]
    )
    if difference is not None:
        argument = names[replicated[difference.position]]
        raise errors.ReplicasDiffer(builder.function, argument, difference)


def with_global_shapes(builder: ProgramBuilder, call: Call) -> Call:
    """Returns the call with the shapes that its arguments have over all processes."""
    signature, passed = builder.global_signature(call)
    program = builder.program_for(signature, None)
    mesh, size = program.mesh, program.mapping.outermost.size
    local_size = size * process_shards.local_size(mesh) // len(mesh.devices)
    if passed is not None and local_size != passed:
        argument, _, _ = program.mapping.describe_size()
        raise errors.LocalSizeMismatch(
            builder.function, argument, passed, local_size, size, jax.process_index()
        )
    return dataclasses.replace(call, signature=signature)


def can_run_as_shards(builder: ProgramBuilder, signature: Signature) -> bool:
    """Whether a program of shards would do: host-local results are wanted, and can be read."""
    if builder.options.view == "global" or not builder.is_multi_process():
        return False
    mesh = builder.program_for(signature, None).mesh
    return fastpath.can_run_locally(tuple(process_shards.local_mesh(mesh).devices.flat))


def place(
    inputs: InputPlacer, call: Call, executable: Executable, donated: Sequence[bool]
) -> tuple[list[Any], bool]:
    """Returns the leaves as the program takes them.

    Also returns whether the dispatch may place such leaves by itself.
    """
    leaves, transferred = inputs.place(call, executable, _in_shardings(call, executable), donated)
    as_shards, mesh = executable.program.as_shards, executable.mesh
    can_repeat = not any(
        donated[index]
        or fastpath.takes_as_placed(call.leaves[index], mesh, process_shards.local_mesh(mesh))
        for index in transferred
    ) and not (as_shards and any(map(host_local.is_global, call.leaves)))
    convert = host_local.to_shards if as_shards else host_local.to_global
    return list(map(convert, leaves, executable.in_shardings)), can_repeat


def _in_shardings(call: Call, executable: Executable) -> list[Any]:
    """Returns the sharding that each leaf of a call should have, host-local or global."""
    return [
        sharding if host_local.is_global(leaf) else host_local.local_sharding(sharding)
        for leaf, sharding in zip(call.leaves, executable.in_shardings, strict=True)
    ]


def delete_donated(call: Call, donated: Sequence[bool]) -> None:
    """Deletes donated arguments: the results reuse their memory through the global arrays."""
    for leaf, is_donated in zip(call.leaves, donated, strict=True):
        if is_donated and isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()


def repeatable(
    builder: ProgramBuilder, call: Call, executable: Executable, global_result: Any
) -> fastpath.Repeatable:
    if builder.options.view == "global":
        return executable.compiled
    if executable.program.as_shards:
        return executable.on_local_devices
    in_shardings = _in_shardings(call, executable)
    return fastpath.GlobalProgram(executable.compiled, in_shardings, global_result)


def to_users_view(builder: ProgramBuilder, program: Program, result: Any) -> Any:
    """Returns a result as the user's ``view`` has it: host-local or global."""
    if builder.options.view == "global":
        return result
    leaves, tree = jax.tree.flatten(result)
    to_local = host_local.from_shards if program.as_shards else host_local.to_local
    local = list(map(to_local, leaves, program.out_shardings(tree, leaves)))
    for index, leaf in enumerate(leaves):
        if getattr(leaf, "weak_type", False):
            local[index] = fastpath.weakly_typed(local[index])
    return jax.tree.unflatten(tree, local)


def shapes_in_users_view(builder: ProgramBuilder, program: Program, out_info: Any) -> Any:
    """Returns the shapes that ``to_users_view`` gives, given those over all processes."""
    if builder.options.view == "global":
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
