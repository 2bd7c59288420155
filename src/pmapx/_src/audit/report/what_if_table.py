"""What a step costs now, and what it would cost with its state sharded.

Nothing here needs JAX, like the rest of a report.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pmapx._src.pages.formatting import arrays, in_bytes, in_seconds, parts, table

MOST_GROUPS = 6


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a device holds and sends in a call."""

    arguments: Mapping[str, int]  # The bytes of its shards, by part of the arguments.
    outputs: int  # The bytes of outputs that reuse no argument.
    temporaries: int  # What the compiler needs in between.
    memory: int  # What a device needs in all, as the compiler counts it.
    collectives: Mapping[str, int]  # How many run in a call, by kind.
    sent: int  # The bytes that a device sends.
    # An estimate of the time of the collectives; None if there is none.
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """A step as it is, and with its parameters and optimizer state sharded (FSDP)."""

    axis: str | None = None  # The mesh axis of the batch.
    devices: int = 0  # Its size.
    reason: str | None = None  # Why it cannot be computed; ``before`` and ``after`` are None then.
    before: Cost | None = None  # The cost of the step as it is; None if it does not fit.
    after: Cost | None = None  # The cost with FSDP; None if that does not fit either.
    sharded: tuple[str, ...] = ()  # The arrays that are sharded.
    # The arrays that stay replicated, as they are small or no dimension divides; numbers are not
    # listed.
    kept: tuple[str, ...] = ()
    # The arrays that are taken as equal on all devices, without a proof.
    assumed: tuple[str, ...] = ()

    def heads(self) -> list[str]:
        return ["per device", "now", f"FSDP over {self.axis}={self.devices}"]

    def rows(self) -> list[list[str]]:
        """The table: what, its figure now and with FSDP."""
        costs = [self.before, self.after]
        known = [cost for cost in costs if cost is not None]
        groups = dict.fromkeys(name for cost in known for name in cost.arguments)
        kinds = dict.fromkeys(name for cost in known for name in cost.collectives)
        figures: list[tuple[str, Callable[[Cost], str]]] = [
            *((name, lambda cost, of=name: in_bytes(cost.arguments.get(of, 0))) for name in groups),
            ("outputs", lambda cost: in_bytes(cost.outputs)),
            ("temporaries", lambda cost: in_bytes(cost.temporaries)),
            ("memory", lambda cost: in_bytes(cost.memory)),
            *(
                (f"{kind}s", lambda cost, of=kind: str(cost.collectives.get(of, 0)))
                for kind in kinds
            ),
            ("sent", lambda cost: in_bytes(cost.sent)),
        ]
        if any(each.seconds is not None for each in known):
            figures.append(("time of collectives", lambda cost: in_seconds(cost.seconds)))
        return [
            [what, *("does not fit" if cost is None else shown(cost) for cost in costs)]
            for what, shown in figures
        ]

    def notes(self) -> list[str]:
        """What the table does not show."""
        return [
            f"{what}: {arrays(paths)}"
            for what, paths in (
                ("sharded", self.sharded),
                ("stay replicated, small or no dimension divides", self.kept),
                ("assumed to be equal on all devices", self.assumed),
            )
            if paths
        ]

    def lines(self) -> list[str]:
        """The table as text."""
        if self.reason is not None:
            return [f"with FSDP: {self.reason}"]
        return [*table(self.heads(), self.rows(), right=(1, 2)), *self.notes()]


def groups_of(paths: Sequence[str]) -> dict[str, str]:
    """Names parts of the state: the argument, or what is directly in it if it is the only one.

    >>> groups_of(["state.params['w']", "state.opt['m']"])
    {"state.params['w']": 'state.params', "state.opt['m']": 'state.opt'}
    >>> groups_of(["params['w']", "opt['m']"])
    {"params['w']": 'params', "opt['m']": 'opt'}
    """
    arguments = {path: parts(path)[0] for path in paths}
    inside = {path: "".join(parts(path)[:2]) for path in paths}
    is_one = len(set(arguments.values())) == 1
    return inside if is_one and len(set(inside.values())) <= MOST_GROUPS else arguments
