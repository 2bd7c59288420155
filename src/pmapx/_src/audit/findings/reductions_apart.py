from collections import defaultdict
from collections.abc import Iterator

from pmapx._src.audit.findings import Finding
from pmapx._src.audit.report.audit_report import AuditedFunction, Exchange, Remark
from pmapx._src.pages.formatting import counted, in_bytes, listed, place


class ReductionsApart(Finding):
    """Several independent reductions over the same axis run one by one.

    Each collective costs a round of messages whatever its size, and small ones cost little else.
    XLA combines reductions of one dtype, up to a size. It does not combine those of different
    dtypes, such as a ``float32`` loss and an ``int32`` count of examples.

    What to do: give them one dtype and reduce them in one call,
    ``loss, count = jax.lax.psum((loss, count.astype(loss.dtype)), "i")``.
    """

    code = "PMX603"

    def in_function(self, function: AuditedFunction) -> Iterator[Remark]:
        together: dict[int, list[Exchange]] = defaultdict(list)
        for exchange in function.exchanges:
            if exchange.merges_with is not None and exchange.is_written:
                together[exchange.merges_with].append(exchange)
        for exchanges in together.values():
            if len(exchanges) < 2:
                continue
            lines = dict.fromkeys(place(exchange.place) for exchange in exchanges)
            axes = exchanges[0].axes or ()
            sizes = listed(
                [f"{in_bytes(each.payload)} {'+'.join(each.dtypes)}" for each in exchanges]
            )
            is_mixed = len({each.dtypes for each in exchanges}) > 1
            yield self.remark(
                f"{counted(len(exchanges), exchanges[0].kind)} over {', '.join(axes) or 'devices'} "
                f"({sizes}) that could be one, from {listed(list(lines))}",
                f"{'cast them to one dtype and ' if is_mixed else ''}reduce them in one call, as "
                "jax.lax.pmean((a, b), axis_name)",
                function,
                exchanges[0].place,
                sum(each.sent_in_a_call for each in exchanges),
            )
