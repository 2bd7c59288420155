from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Leaf, Remark
from pmapx._src.audit.report.formatting import arrays, in_bytes


class StackedReplicas(Finding):
    """An argument is sharded along a leading device axis, and all its shards are equal.

    A state that ``jax_utils.replicate`` made has a leading axis with one copy for each device. JAX
    does not know that the copies are equal: a checkpoint, a transfer to the host, ``x[0]`` and
    every ``jit`` handle n times as many bytes as needed, and XLA cannot shard it.

    What to do: pass it replicated, with ``in_axes=None`` and ``out_axes=None`` in ``pmapx.pmap``
    (``out_axes=pmapx.AUTO`` finds the outputs for which that holds), or with ``P()`` in the specs
    of ``jax.shard_map``; ``pmapx migrate --style replicated`` rewrites a codebase that way. Read
    one copy with ``pmapx.unreplicate``.

    Shards count as equal if the arrays that were passed were compared and are equal or, if only
    shapes were passed, if the function returns equal shards whenever it gets equal ones.
    """

    code = "PMX601"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        sharded = [leaf for leaf in function.arguments if leaf.is_split]
        # What a call makes vary cannot be passed replicated: that is PMX609.
        stacked = [leaf for leaf in sharded if leaf.is_equal and not _drifts(leaf)]
        if len(stacked) == len(sharded):
            # Data may have been made up for the audit; a state beside a batch is still a state.
            stacked = [leaf for leaf in sharded if leaf.carried and leaf.is_kept_equal]
        if not stacked or len(stacked) == len(sharded):
            return
        copies = sum(leaf.stacked_copies for leaf in stacked)
        how = "were compared" if all(leaf.is_compared for leaf in stacked) else "stay equal"
        yield self.remark(
            f"{arrays([leaf.path for leaf in stacked])}: one shard for each of "
            f"{function.device_count} devices, all equal (they {how}); {in_bytes(copies)} of "
            "them are copies",
            "pass it replicated: in_axes=None and out_axes=None, or P() in the specs of shard_map",
            function,
        )


def _drifts(leaf: Leaf) -> bool:
    return leaf.carried is not None and not leaf.is_kept_equal
