"""Something that costs each device more, the more of them there are."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Remark


class GrowsWithDevices(Finding):
    """What a device sends or holds grows with the number of devices.

    Where each device keeps its share of the work, it costs the same on 8 devices as on 4,096. What
    grows is most often an array that has a row for every device and is gathered onto each: the
    results of ``all_gather``, a state that is read whole, a table over all examples. On a pod it is
    what runs out of memory first.

    What to do: reduce on each device what is needed of its own part, and gather that; or keep it
    split, ``jax.lax.psum_scatter`` in place of ``jax.lax.psum`` for example.
    """

    code = "PMX611"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for a function, with all that grows."""
        if function.scaling is None or not function.scaling.growing:
            return
        few, *_, many = (point.devices for point in function.scaling.points if point.devices > 1)
        grown = "; ".join(map(str, function.scaling.growing))
        yield self.remark(
            f"from {few:,} to {many:,} devices grows {grown}",
            "reduce on each device what is needed of its part before it is gathered",
            function,
            function.place,
        )
