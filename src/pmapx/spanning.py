"""A call of a map that spans processes: this process's rows in, this process's rows out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from pmapx import errors, hosts, shares
from pmapx.calls import Call
from pmapx.inputs import Inputs
from pmapx.program import Executable, Program
from pmapx.programs import Programs


def over_all_processes(programs: Programs, call: Call) -> Call:
    """Returns the call with the shapes that its arguments have over all processes."""
    signature, passed = programs.over_all_processes(call)
    program = programs.program_for(signature, None)
    mesh, size = program.layout.mesh, program.mapping.outermost.size
    rows = size * len(shares.local_mesh(mesh).devices) // len(mesh.devices)
    if passed is not None and rows != passed:
        argument, _, _ = program.mapping.describe_size()
        raise errors.LocalRowsDisagree(
            programs.function, argument, passed, rows, size, jax.process_index()
        )
    return dataclasses.replace(call, signature=signature)


def placed(
    inputs: Inputs, call: Call, executable: Executable, donated: Sequence[bool]
) -> list[Any]:
    """Returns the leaves as global arrays, each in its place."""
    wanted = [
        sharding if hosts.is_global(leaf) else hosts.local_sharding(sharding)
        for leaf, sharding in zip(call.leaves, executable.in_shardings, strict=True)
    ]
    leaves, _ = inputs.place(call, executable, wanted, donated)
    return list(map(hosts.to_global, leaves, executable.in_shardings))


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
    shardings = program.out_shardings(result)
    return jax.tree.unflatten(tree, map(hosts.to_local, leaves, shardings))


def shapes_from_here(programs: Programs, program: Program, out_info: Any) -> Any:
    """Returns the shapes of a result as the user sees it, given those over all processes."""
    if programs.options.view == "global":
        return out_info
    leaves, tree = jax.tree.flatten(out_info)
    shapes = [
        jax.ShapeDtypeStruct(
            hosts.local_shape(leaf.shape, sharding),
            leaf.dtype,
            sharding=hosts.local_sharding(sharding),
        )
        for leaf, sharding in zip(leaves, program.out_shardings(out_info), strict=True)
    ]
    return jax.tree.unflatten(tree, shapes)
