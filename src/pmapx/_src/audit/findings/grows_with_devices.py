from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark


class GrowsWithDevices(Finding):
    """What a device sends or holds grows with the number of devices.

    If each device keeps its share of the work, it costs the same on 8 devices as on 4,096. What
    grows is most often an array with one entry for every device that is gathered onto each of them:
    the result of ``all_gather``, a stacked state that is read back, a table over all examples. On a
    pod it is what runs out of memory first.

    What to do: reduce on each device what is needed of its shard, and gather only that; or keep the
    array sharded, for example with ``jax.lax.psum_scatter`` in place of ``jax.lax.psum``.
    """

    code = "PMX611"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        if function.scaling is None or not function.scaling.growing:
            return
        few, *_, many = (point.devices for point in function.scaling.points if point.devices > 1)
        growing = function.scaling.growing
        yield self.remark(
            f"grows from {few:,} to {many:,} devices: {'; '.join(map(str, growing))}",
            "reduce each shard on its device before it is gathered",
            function,
            size=max((each.many for each in growing if each.unit == "bytes"), default=0),
        )
