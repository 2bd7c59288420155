"""All-reduces that could be one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pmapx.audit.findings import Finding
from pmapx.audit.quantities import counted, in_bytes, listed
from pmapx.audit.quantities import place as shown
from pmapx.audit.report import AuditedFunction, Exchange, Remark


class ReductionsApart(Finding):
    """Several reductions over the same axis do not need each other's results, and run apart.

    Each collective costs a round of messages whatever its size, and small ones cost little else.
    ``jax.lax.pmean`` of a tree is one reduction of all its leaves; two calls, or a ``tree_map``
    over ``pmean``, may stay several. XLA merges some of them on GPU and TPU, none on CPU; what is
    reported is what it left.

    What to do: reduce them in one call, ``grads, loss = jax.lax.pmean((grads, loss), "i")``.
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
            sizes = listed([in_bytes(exchange.payload) for exchange in exchanges])
            yield self.remark(
                f"{counted(len(exchanges), exchanges[0].kind)} over {', '.join(axes) or 'devices'} "
                f"({sizes}) that could be one, from {listed(list(lines))}",
                "reduce a tree of all of them in one call, as jax.lax.pmean((a, b), axis_name)",
                function,
                exchanges[0].place,
            )
