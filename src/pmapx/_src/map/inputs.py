"""Inputs that lie elsewhere: moved, or refused, as the user wants it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from pmapx._src import errors, fastpath
from pmapx._src.map.cache_info import Record
from pmapx._src.map.options import Reshard
from pmapx._src.map.program import Executable
from pmapx._src.mesh import placement
from pmapx._src.mesh.context_mesh import on_context_mesh
from pmapx._src.trees.signature import Call


@dataclasses.dataclass(frozen=True)
class KnownMove:
    """A transfer that the dispatch does by itself.

    Attributes:
      wanted: where to; an object of its own for each argument.
      argument: the argument's name.
      reason: why it is transferred.
    """

    wanted: Sharding
    argument: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Moves the inputs of one function.

    Attributes:
      function: its name.
      policy: what to do with an input that lies elsewhere.
      record: where moves are counted.
      known: the moves that the dispatch does by itself, by the identity of where to.
    """

    function: str
    policy: Reshard
    record: Record
    known: dict[int, KnownMove] = dataclasses.field(default_factory=dict)

    def place(
        self,
        call: Call,
        executable: Executable,
        wanted: Sequence[Any],
        donated: Sequence[bool] = (),
    ) -> tuple[list[Any], list[int]]:
        """Returns the leaves where they are wanted, and the indices of those moved.

        Of those that are said to be ``donated``, each part is freed once it has moved.
        """
        misplaced = [
            index
            for index, leaf in enumerate(call.leaves)
            if wanted[index] is not None and not placement.is_placed(leaf, wanted[index])
        ]
        if not misplaced:
            return call.leaves, []
        # All are looked at before any is moved: a refusal leaves everything as it was.
        facts = {index: self._facts(index, call, executable, wanted[index]) for index in misplaced}
        leaves = list(call.leaves)
        for index, (argument, shape) in facts.items():
            reason = placement.reason_to_move(leaves[index], wanted[index])
            if self.policy == "warn":
                moved = errors.InputResharded(self.function, argument, shape, reason)
                self.record.warn_once([moved])
            self.record.note_move(argument, reason)
            if donated and donated[index]:
                resharded = errors.DonatedInputResharded(self.function, argument, shape)
                self.record.warn_once([resharded])
                leaves[index] = placement.move_donated(leaves[index], wanted[index])
            else:
                leaves[index] = placement.move(leaves[index], wanted[index])
        return leaves, misplaced

    def run(
        self, call: Call, executable: Executable, donated: Sequence[bool]
    ) -> tuple[Any, fastpath.Repeatable]:
        """Runs a program on the leaves of a call, each transferred to where it is wanted.

        Also returns the program if the dispatch may run it, and place such leaves, by itself.
        """
        leaves, moved = self.place(call, executable, executable.in_shardings)
        result, is_of_program = on_context_mesh(executable.run(leaves))
        for index in moved:
            if donated[index]:
                call.leaves[index].delete()  # Its copy was donated, and the call succeeded.
        # The dispatch would pass on what had to be copied first.
        if (
            not is_of_program
            or call.has_narrowed
            or any(
                donated[index]
                or jnp.issubdtype(call.leaves[index].dtype, jax.dtypes.extended)
                or fastpath.takes_as_placed(call.leaves[index], executable.mesh)
                for index in moved
            )
        ):
            return result, None
        wanted = self.known_moves(call, executable, moved)
        if wanted:
            return result, fastpath.MovingProgram(executable.compiled, wanted)
        return result, executable.compiled

    def _facts(
        self, index: int, call: Call, executable: Executable, wanted: Any
    ) -> tuple[str, str]:
        """Returns the name and shape of a misplaced leaf; refuses it if the user said so."""
        argument = executable.program.mapping.names[index]
        shape = str(call.signature.leaves[index])
        found = call.leaves[index].sharding
        if self.policy == "error":
            raise errors.ReshardRefused(self.function, argument, shape, found, wanted)
        if placement.is_move_forbidden():
            raise errors.TransferDisallowed(self.function, argument, shape, found, wanted)
        return argument, shape

    def known_moves(
        self, call: Call, executable: Executable, moved: Sequence[int]
    ) -> dict[int, Sharding]:
        """Returns, by leaf, where those leaves go that ``place`` moved, to be told apart by it."""
        found = {}
        for index in moved:
            sharding = executable.in_shardings[index]
            own = copy.copy(sharding)
            reason = placement.reason_to_move(call.leaves[index], sharding)
            known = KnownMove(own, executable.program.mapping.names[index], reason)
            self.known[id(own)] = known
            found[index] = own
        return found

    def move_known(self, x: jax.Array, wanted: jax.sharding.Sharding) -> jax.Array | None:
        """Moves an input of a signature seen before; None when the dispatch itself can."""
        if placement.is_placed(x, wanted):
            return None
        if placement.is_move_forbidden():
            shape = f"{x.dtype}[{','.join(map(str, x.shape))}]"
            raise errors.TransferDisallowed(self.function, "an argument", shape, x.sharding, wanted)
        known = self.known.get(id(wanted))
        if known is not None:
            self.record.note_move(known.argument, known.reason)
        # From one device the dispatch cuts and sends the parts, at less cost than a device_put.
        return None if x.sharding.num_devices == 1 else placement.move(x, wanted)
