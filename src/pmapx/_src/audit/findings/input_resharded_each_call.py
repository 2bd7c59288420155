from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import counted, in_bytes

_FIX = "place it before the loop; for batches, use pmapx.shard_batch or pmapx.prefetch"


class InputReshardedEachCall(Finding):
    """An input has another sharding than the program needs, and is transferred before each call.

    It may be on a single device, on other devices, or replicated where it has to be sharded. The
    transfer takes time at every call, and meanwhile memory for a second copy.

    What to do: place it once, with ``jax.device_put(x, sharding)`` or ``pmapx.replicate``; for
    batches, use ``pmapx.shard_batch``, or ``pmapx.prefetch``, which transfers the next ones while a
    step runs.
    """

    code = "PMX604"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        history = function.history
        misplaced = {leaf.path: leaf for leaf in function.arguments if leaf.moved}
        for move in history.moved:
            # The first call of a loop may get its inputs from elsewhere.
            if move.count >= 2 and move.count >= history.calls - 1:
                misplaced.pop(move.path, None)
                size = "" if move.bytes is None else f" ({in_bytes(move.bytes)})"
                yield self.remark(
                    f"{move.path}{size} was transferred before {counted(move.count, 'call')} of "
                    f"{history.calls}: {move.reason}",
                    _FIX,
                    function,
                    size=(move.bytes or 0) * move.count,
                )
        if history.calls > 1:
            return  # The history has all of them.
        for leaf in misplaced.values():
            yield self.remark(
                f"{leaf.path}, {leaf.type}, is transferred before the program runs: {leaf.moved}",
                _FIX,
                function,
                size=leaf.bytes_a_device,
            )
