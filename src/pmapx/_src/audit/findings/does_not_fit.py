from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import in_bytes, listed


class DoesNotFit(Finding):
    """The program needs more memory than a device has.

    The compiler for TPUs refuses such a program with ``RESOURCE_EXHAUSTED``; on a GPU it fails when
    it runs. The finding names the largest arrays that a device holds.

    What to do: shard the largest arrays (``pmapx audit --what-if fsdp`` shows what that saves),
    donate the state, use a smaller batch per device, recompute activations with ``jax.checkpoint``,
    or use a device with more memory.
    """

    code = "PMX612"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        memory, capacity = function.memory, function.capacity
        needed = None if memory is None else memory.peak or memory.total
        if function.exceeded is not None:
            found = function.exceeded.partition("RESOURCE_EXHAUSTED:")[2].strip().splitlines()
            problem = (found or [function.exceeded])[0].rstrip(".")
        elif needed is not None and capacity is not None and needed > capacity:
            problem = f"a device needs {in_bytes(needed)} and has {in_bytes(capacity)}"
        else:
            return
        leaves = [*function.arguments, *function.outputs]
        largest = sorted(leaves, key=lambda leaf: -leaf.bytes_a_device)[:5]
        held = listed(
            [f"{leaf.path} {leaf.type} {in_bytes(leaf.bytes_a_device)}" for leaf in largest], 5
        )
        yield self.remark(
            f"{problem}; the largest arrays per device: {held}",
            "shard the largest of them, donate the state, or use a smaller batch per device",
            function,
            size=needed or sum(leaf.bytes_a_device for leaf in leaves),
        )
