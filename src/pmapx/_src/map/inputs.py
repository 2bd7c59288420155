"""Inputs committed to other devices: transferred or rejected, by the ``reshard`` policy."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from pmapx._src import errors, fastpath
from pmapx._src.map.cache_info import CallStatistics
from pmapx._src.map.options import Reshard
from pmapx._src.map.program import Executable
from pmapx._src.mesh import resharding
from pmapx._src.mesh.context_mesh import explicit_mesh_in_type
from pmapx._src.trees.checked_leaves import abstract
from pmapx._src.trees.signature import Call


class KnownTransfer(NamedTuple):
    """A transfer that the dispatch does by itself."""

    wanted: Sharding  # A separate object for each argument: its identity is the key.
    argument: str
    reason: str


def delete_donated(call: Call, transferred: Sequence[int], donated: Sequence[bool]) -> None:
    """Deletes donated inputs whose copies were donated to a program that ran."""
    for index in transferred:
        if donated[index]:
            call.leaves[index].delete()


class InputPlacer:
    """Transfers the inputs of one function to the shardings that its programs want."""

    def __init__(self, function: str, policy: Reshard, statistics: CallStatistics) -> None:
        self._function = function
        self._policy = policy
        self._statistics = statistics
        self._known: dict[int, KnownTransfer] = {}

    def clear(self) -> None:
        """Drops the transfers that the dispatch does by itself."""
        self._known.clear()

    def place(
        self,
        call: Call,
        executable: Executable,
        wanted: Sequence[Any],
        donated: Sequence[bool] = (),
    ) -> tuple[list[Any], list[int]]:
        """Returns the leaves in the wanted shardings, and the indices of those transferred.

        Each shard of a ``donated`` leaf is freed once it is transferred.
        """
        misplaced = [
            index
            for index, leaf in enumerate(call.leaves)
            if wanted[index] is not None and not resharding.is_placed(leaf, wanted[index])
        ]
        if not misplaced:
            return call.leaves, []
        # All are checked before any is transferred: an error leaves everything as it was.
        facts = {index: self._check(index, call, executable, wanted[index]) for index in misplaced}
        leaves = list(call.leaves)
        for index, (argument, shape) in facts.items():
            reason = resharding.reason_to_transfer(leaves[index], wanted[index])
            if self._policy == "warn":
                warning = errors.InputResharded(self._function, argument, shape, reason)
                self._statistics.warn_once([warning])
            self._statistics.note_transfer(argument, reason)
            if donated and donated[index]:
                copied = errors.DonatedInputResharded(self._function, argument, shape)
                self._statistics.warn_once([copied])
                leaves[index] = resharding.reshard_donated(leaves[index], wanted[index])
            else:
                leaves[index] = resharding.reshard(leaves[index], wanted[index])
        return leaves, misplaced

    def _check(
        self, index: int, call: Call, executable: Executable, wanted: Any
    ) -> tuple[str, str]:
        """Returns the name and shape of a misplaced leaf; raises if it must not be transferred."""
        argument = executable.program.mapping.names[index]
        shape = str(call.signature.leaves[index])
        found = call.leaves[index].sharding
        if self._policy == "error":
            raise errors.ReshardRefused(self._function, argument, shape, found, wanted)
        if resharding.is_transfer_guarded():
            raise errors.TransferDisallowed(self._function, argument, shape, found, wanted)
        return argument, shape

    def repeatable(
        self,
        call: Call,
        executable: Executable,
        transferred: Sequence[int],
        donated: Sequence[bool],
    ) -> fastpath.Repeatable:
        """Returns the program for the dispatch to repeat a call that ran; None if it cannot."""
        if call.has_narrowed or any(
            donated[index]
            or jnp.issubdtype(call.leaves[index].dtype, jax.dtypes.extended)
            or fastpath.takes_as_placed(call.leaves[index], executable.mesh)
            for index in transferred
        ):
            return None
        if not transferred:
            return executable.compiled
        wanted = {}
        for index in transferred:
            sharding = executable.in_shardings[index]
            own = wanted[index] = copy.copy(sharding)
            reason = resharding.reason_to_transfer(call.leaves[index], sharding)
            argument = executable.program.mapping.names[index]
            self._known[id(own)] = KnownTransfer(own, argument, reason)
        return fastpath.TransferringProgram(executable.compiled, wanted)

    def transfer_known(self, x: jax.Array, wanted: jax.sharding.Sharding) -> jax.Array | None:
        """Transfers an input of a known signature; None when the dispatch itself can."""
        if resharding.is_placed(x, wanted):
            return None
        if resharding.is_transfer_guarded():
            shape = str(abstract(x))
            raise errors.TransferDisallowed(
                self._function, "an argument", shape, x.sharding, wanted
            )
        known = self._known.get(id(wanted))
        if known is not None:
            self._statistics.note_transfer(known.argument, known.reason)
        # From one device the dispatch slices and sends the shards at less cost than a device_put.
        # JAX 0.8 cannot slice an array of one device whose type has a mesh of explicit axes.
        if x.sharding.num_devices == 1 and explicit_mesh_in_type(x) is None:
            return None
        return resharding.reshard(x, wanted)
