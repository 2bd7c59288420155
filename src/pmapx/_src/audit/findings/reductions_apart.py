"""All-reduces that could be one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.data import AuditedFunction, Exchange, Remark
from pmapx._src.audit.report.units import counted, in_bytes, listed
from pmapx._src.audit.report.units import place as shown


class ReductionsApart(Finding):
    """Several reductions over the same axis do not need each other's results, and run apart.

    Each collective costs a round of messages whatever its size, and small ones cost little else.
    XLA puts reductions of one type into one, up to a size. It leaves apart those of different
    types, as a ``float32`` loss and an ``int32`` count of examples are.

    What to do: give them one type and reduce them in one call,
    ``loss, count = jax.lax.psum((loss, count.astype(loss.dtype)), "i")``.
    """

    code = "PMX603"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        """One remark for each set of reductions that could be one."""
        together: dict[int, list[Exchange]] = defaultdict(list)
        for exchange in function.exchanges:
            if exchange.merges_with is not None and exchange.is_written:
                together[exchange.merges_with].append(exchange)
        for exchanges in together.values():
            lines = dict.fromkeys(shown(exchange.place) for exchange in exchanges)
            if len(exchanges) < 2:
                continue
            axes = exchanges[0].axes or ()
            sizes = listed(
                [f"{in_bytes(each.payload)} {'+'.join(each.dtypes)}" for each in exchanges]
            )
            is_mixed = len({each.dtypes for each in exchanges}) > 1
            yield self.remark(
                f"{counted(len(exchanges), exchanges[0].kind)} over {', '.join(axes) or 'devices'} "
                f"({sizes}) that could be one, from {listed(list(lines))}",
                f"{'cast them to one type and ' if is_mixed else ''}reduce them in one call, as "
                "jax.lax.pmean((a, b), axis_name)",
                function,
                exchanges[0].place,
            )
