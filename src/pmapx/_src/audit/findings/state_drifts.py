from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Leaf, Remark
from pmapx._src.pages.formatting import arrays, listed, parts


class StateDrifts(Finding):
    """A part of the state is equal on all devices before the step, and varies after it.

    If the rest of the state is reduced and stays equal, a reduction is most often missing: batch
    statistics, a moving average or a counter that each device updates from its own batch. ``x[0]``
    then keeps one device's value, and a checkpoint loses the others.

    What to do: reduce the update, ``jax.lax.pmean(x, axis_name)``. If it is meant to vary, as a
    random state is, nothing is wrong.
    """

    code = "PMX609"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        outputs = {leaf.path: leaf for leaf in function.outputs}
        pairs = [
            (leaf, outputs[leaf.carried])
            for leaf in function.arguments
            if leaf.carried in outputs and leaf.dtype.startswith(("float", "bfloat", "complex"))
        ]
        stays = {parts(leaf.path)[0] for leaf, after in pairs if after.is_equal and leaf.is_split}
        drifting: dict[str | None, list[tuple[Leaf, Leaf]]] = {}
        for leaf, after in pairs:
            starts_equal = leaf.is_equal or not leaf.is_compared
            # Not a batch that is returned in its shape: part of a state, or of a tree next to one.
            argument, *keys = parts(leaf.path)
            starts_so = leaf.is_compared or leaf.is_constant
            is_state = argument in stays or (stays and keys and starts_so)
            if leaf.is_split and starts_equal and is_state and not after.is_equal:
                drifting.setdefault(after.since, []).append((leaf, after))
        for since, several in drifting.items():
            lines = [after.made_at for _, after in several if after.lacks_a_reduction]
            before = listed([line for line in dict.fromkeys(lines) if line])
            yield self.remark(
                f"{arrays([leaf.path for leaf, _ in several])} "
                f"{'differs' if len(several) == 1 else 'differ'} between devices after a call"
                f"{f': varies since {since}' if since else ''}"
                f"{f', no pmean before {before}' if before else ''}",
                "reduce the update, for example with jax.lax.pmean(x, axis_name)",
                function,
                size=sum(leaf.bytes_a_device for leaf, _ in several),
            )
