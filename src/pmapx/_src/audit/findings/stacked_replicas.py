from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Remark
from pmapx._src.pages.formatting import arrays, in_bytes


class StackedReplicas(Finding):
    """An argument is sharded along a leading device axis, and all its shards are equal.

    State created by ``jax_utils.replicate`` has a leading axis with one copy per device. JAX
    does not know that the copies are equal: a checkpoint, a transfer to the host and ``x[0]``
    handle n times as many bytes as needed, and XLA cannot shard it. The memory per device is the
    same either way.

    What to do: pass it replicated, with ``in_axes=None`` and ``out_axes=None`` in ``pmapx.pmap``
    (``out_axes=pmapx.AUTO`` finds the outputs for which that holds), or with ``P()`` in the specs
    of ``jax.shard_map``; ``pmapx migrate --style replicated`` rewrites a codebase that way. Read
    one copy with ``pmapx.unreplicate``.

    Shards count as equal if the function returns equal shards whenever it gets equal ones, and the
    values that were passed do not differ. Constant values, and arguments that are only read, prove
    nothing.
    """

    code = "PMX601"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        sharded = [leaf for leaf in function.arguments if leaf.is_split and not leaf.is_unused]
        # What a call makes vary cannot be passed replicated: that is PMX609.
        stacked = [leaf for leaf in sharded if leaf.is_equal and leaf.is_kept_equal]
        if not stacked or len(stacked) == len(sharded):
            return
        copies = sum(leaf.stacked_copies for leaf in stacked)
        one = sum(leaf.bytes_a_device for leaf in stacked)
        how = "were compared" if all(leaf.is_compared for leaf in stacked) else "stay equal"
        yield self.remark(
            f"{arrays([leaf.path for leaf in stacked])}: one shard for each of "
            f"{function.device_count} devices, all equal (they {how}); a checkpoint and the host "
            f"hold {in_bytes(one + copies)} instead of {in_bytes(one)}; the memory per device is "
            "the same",
            "pass it replicated: in_axes=None and out_axes=None, or P() in the specs of shard_map",
            function,
            size=copies,
        )
