"""State that is replicated by stacking it."""

from __future__ import annotations

from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Leaf, Remark
from pmapx._src.audit.report.units import arrays, in_bytes


class StackedReplicas(Finding):
    """An argument holds one row a device, and all rows are equal.

    A replicated state in the style of ``jax_utils.replicate`` is an array with a leading axis as
    long as there are devices. JAX does not know that its rows are equal: a checkpoint of it, a
    copy to the host, ``x[0]`` and every ``jit`` that meets it treat n times as many bytes as there
    are, and XLA cannot divide it up.

    What to do: pass it once and whole, with ``in_axes=None`` and ``out_axes=None`` in
    ``pmapx.pmap`` (``out_axes=pmapx.AUTO`` finds where that holds), or with ``P()`` in the specs
    of ``jax.shard_map``; ``pmapx migrate --style replicated`` rewrites a codebase so. Read a row
    with ``pmapx.unreplicate``.

    Rows count as equal if the arrays that were passed were compared and found so or, where only
    shapes were passed, if the function returns them equal on all devices whenever they come in so.
    """

    code = "PMX601"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for all such arguments together."""
        split = [leaf for leaf in function.arguments if leaf.is_split]
        # What a call makes differ cannot be passed whole: that is another finding.
        stacked = [leaf for leaf in split if leaf.is_equal and not _drifts(leaf)]
        if len(stacked) == len(split):
            # Data may have been made up for the audit; a state beside a batch is one all the same.
            stacked = [leaf for leaf in split if leaf.carried and leaf.is_kept_equal]
        if not stacked or len(stacked) == len(split):
            return
        copies = sum(leaf.stacked_copies for leaf in stacked)
        how = "were compared" if all(leaf.is_compared for leaf in stacked) else "stay equal"
        yield self.remark(
            f"{arrays([leaf.path for leaf in stacked])}: one row for each of "
            f"{function.device_count} devices, all equal (they {how}); {in_bytes(copies)} of "
            "them are copies",
            "pass it whole: in_axes=None and out_axes=None, or P() in the specs of shard_map",
            function,
            function.place,
        )


def _drifts(leaf: Leaf) -> bool:
    return leaf.carried is not None and not leaf.is_kept_equal
