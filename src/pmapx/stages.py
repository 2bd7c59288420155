"""Lowered and compiled maps that span processes, in host-local terms.

The program itself is that of all processes, and what describes it (its text, its cost, the shapes
of its arguments) is JAX's own. What it takes and gives are this process's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pmapx import errors, hosts, spanning
from pmapx.axes import LeafNames
from pmapx.program import Program
from pmapx.programs import Programs


class Lowered:
    """What ``lower`` of a map that spans processes returns.

    All but ``compile`` and ``out_info`` is what ``jax.stages.Lowered`` has.
    """

    def __init__(
        self, lowered: jax.stages.Lowered, programs: Programs, program: Program, out_info: Any
    ) -> None:
        """Wraps ``lowered``, the program over all processes."""
        self._lowered = lowered
        self._programs = programs
        self._program = program
        self._out_info = out_info

    def __getattr__(self, name: str) -> Any:
        """Leaves everything else to the program over all processes."""
        return getattr(self._lowered, name)

    @property
    def out_info(self) -> Any:
        """The shapes of what the compiled map returns in this process."""
        return spanning.shapes_from_here(self._programs, self._program, self._out_info)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compiles it; the arguments are those of ``jax.stages.Lowered.compile``."""
        compiled = self._lowered.compile(*args, **kwargs)
        return Compiled(compiled, self._programs, self._program, self._out_info)


class Compiled:
    """A compiled map that spans processes: called with and returning this process's rows.

    All but the call and ``out_info`` is what ``jax.stages.Compiled`` has.
    """

    def __init__(
        self, compiled: jax.stages.Compiled, programs: Programs, program: Program, out_info: Any
    ) -> None:
        """Wraps ``compiled``, the program over all processes."""
        self._compiled = compiled
        self._programs = programs
        self._program = program
        self._out_info = out_info

    def __getattr__(self, name: str) -> Any:
        """Leaves everything else to the program over all processes."""
        return getattr(self._compiled, name)

    @property
    def out_info(self) -> Any:
        """The shapes of what the call returns in this process."""
        return spanning.shapes_from_here(self._programs, self._program, self._out_info)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on this process's rows; static arguments are not passed again."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self._program.tree:
            return self._compiled(*args, **kwargs)  # JAX says what is wrong with them.
        names = self._program.mapping.names
        shardings: Sequence[Any] = self._program.layout.in_shardings
        for index, (leaf, sharding) in enumerate(zip(leaves, shardings, strict=True)):
            _check_shape(leaf, sharding, self._program, names, index)
        placed = map(hosts.to_global, leaves, shardings)
        args, kwargs = jax.tree.unflatten(self._program.compiled_tree, placed)
        result = self._compiled(*args, **kwargs)
        return spanning.seen_from_here(self._programs, self._program, result)


def _check_shape(leaf: Any, sharding: Any, program: Program, names: LeafNames, index: int) -> None:
    """Refuses rows of another shape than the map was compiled for."""
    wanted = program.mapping.leaves[index].shape
    if not hosts.is_global(leaf):
        wanted = hosts.local_shape(wanted, sharding)
    if jax.numpy.shape(leaf) != wanted:
        raise errors.CompiledForAnotherShape(
            names.function, names[index], jax.numpy.shape(leaf), wanted
        )
