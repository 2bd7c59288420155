"""Which outputs of a mapped function vary between devices, and why.

``traced_program`` finds that for a traced program; here each output gets its path, the line that
made it, and a description.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from pmapx._src.replication import shard_map_body, traced_program
from pmapx._src.replication.shard_map_body import Variation
from pmapx._src.trees import names


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of a mapped function.

    Attributes:
      path: where it is in the result, as ``['batch_stats']['mean']``; empty for a single output.
      variation: over which axes it may differ between devices, and since where.
      made_at: the line that made it, as ``train.py:88``; None when that is not known.
    """

    path: str
    variation: Variation
    made_at: str | None

    def __str__(self) -> str:
        """Describes it in a sentence, with the line that causes it."""
        name = f"output {self.path}" if self.path else "the output"
        if self.variation.is_replicated:
            return f"{name} is equal on all devices"
        over = ", ".join(repr(axis) for axis in sorted(self.variation.axes, key=str))
        since = self.variation.since or "unknown code"
        if since.startswith("`"):
            return f"{name} varies over {over} since {since}"
        before = f" before {self.made_at}" if self.made_at else ""
        return f"{name} varies over {over}: no pmean{before} of what comes from {since}"


def outputs_of(
    traced: jax.stages.Traced, *, equal: Sequence[int] = (), parameters: Sequence[str] = ()
) -> list[Output]:
    """Finds which outputs of a mapped function are equal on all devices, and why others are not.

    Args:
      traced: what ``trace`` returned, of a function of ``pmapx.pmap`` or of a jitted ``shard_map``.
      equal: the positions of arguments with a leading device axis whose shards are equal, such as a
        replicated train state. The result then shows whether a step keeps it so.
      parameters: the names of the function's positional parameters, for the descriptions.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(traced.args_info)
    arguments = []
    for path, _ in paths:
        name = names.leaf(path, range(len(paths)), parameters)
        is_equal = path[0].idx == 0 and getattr(path[1], "idx", None) in equal
        arguments.append(traced_program.Argument(name, differs=frozenset() if is_equal else None))
    found = traced_program.of_program(traced.jaxpr, arguments).outputs
    outputs, _ = jax.tree_util.tree_flatten_with_path(traced.out_info)
    return [
        Output(jax.tree_util.keystr(path), _variation(held), held.made_at)
        for (path, _), held in zip(outputs, found, strict=True)
    ]


def _variation(held: traced_program.Held) -> Variation:
    origins = shard_map_body.join([held.axes, held.made_of])
    return Variation(frozenset(origins), next(iter(origins.values()), None))
