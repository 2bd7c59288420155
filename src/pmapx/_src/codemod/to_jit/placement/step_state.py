"""Which arguments and outputs of a jitted step are its state, seen in a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pmapx._src.audit.donation import carried
from pmapx._src.audit.what_if import sharded_spec

Key = int | str
"""The position of an argument that is not static, or its keyword."""


@dataclasses.dataclass(frozen=True)
class StepState:
    """The arguments of a call by position or keyword, and its result."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    @property
    def facts(self) -> dict[str, Any]:
        """What FSDP would shard, of a call with replicated state.

        ``held`` are the arguments that are replicated and have an array that would be sharded,
        ``outputs`` the parts of the result that replace some of them in the next call, each with
        that argument. ``parts`` is the length of a result that is a tuple, None for another.
        """
        named = self._named
        held = [key for key, argument in named if _is_held(argument)]
        parts = len(self.result) if type(self.result) is tuple else None
        trees = [self.result] if parts is None else self.result
        part_of = [k for k, tree in enumerate(trees) for _ in jax.tree.leaves(tree)]
        outputs: dict[int, Key] = {}
        for key, _, output in self._carried:
            if key in held:
                outputs.setdefault(part_of[output], key)
        known = dict(named)
        unplaced = {key for key, *_ in self._carried if _is_unplaced(known[key])}
        return {
            "arguments": len(self.args),
            "held": held,
            "parts": parts,
            "outputs": sorted(outputs.items()),
            "has_state": bool(self._carried),
            "is_unplaced": bool(unplaced),
        }

    def outputs_of(self, held: Collection[Key]) -> set[int]:
        """Returns the leaves of the result that replace leaves of some arguments."""
        return {output for key, _, output in self._carried if key in held}

    def why_not_sharded(self, held: Collection[Key]) -> str:
        """Returns which part of the state is not sharded as with FSDP before the call and after."""
        flat, _ = jax.tree_util.tree_flatten_with_path(self.result)
        for key, before, output in self._carried:
            path, after = flat[output]
            where = f"output{jax.tree_util.keystr(path)}"
            if key not in held:
                continue
            if not isinstance(before, jax.Array):
                return f"the array that {where} replaces is not placed on the mesh before the call"
            if before.is_fully_replicated and _is_sharded(before):
                return f"the array that {where} replaces is replicated before the call"
            if not before.sharding.is_equivalent_to(after.sharding, after.ndim):
                return f"{where} has another sharding than the array that it replaces"
        return ""

    @property
    def _named(self) -> list[tuple[Key, Any]]:
        return [*enumerate(self.args), *sorted(self.kwargs.items())]

    @property
    def _carried(self) -> list[tuple[Key, Any, int]]:
        """The leaves of arguments that outputs replace: the argument, the leaf and the output."""
        leaves = [(key, leaf) for key, tree in self._named for leaf in jax.tree.leaves(tree)]
        pairs = carried((self.args, self.kwargs), self.result)
        return [(*leaves[argument], output) for argument, output in pairs]


def _is_held(argument: Any) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(argument) if isinstance(leaf, jax.Array)]
    is_placed = all(leaf.is_fully_replicated and leaf.sharding.num_devices > 1 for leaf in leaves)
    return is_placed and any(map(_is_sharded, leaves))


def _is_unplaced(argument: Any) -> bool:
    leaves = jax.tree.leaves(argument)
    is_placed = any(isinstance(leaf, jax.Array) and leaf.committed for leaf in leaves)
    return not is_placed and any(map(_is_sharded, leaves))


def _is_sharded(leaf: Any) -> bool:
    shape = jax.numpy.shape(leaf)
    return sharded_spec(shape, PartitionSpec(), "", jax.device_count()) is not None
