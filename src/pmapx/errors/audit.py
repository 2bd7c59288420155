"""Mistakes in what is to be audited."""

from __future__ import annotations

from typing import Any

from pmapx.errors.base import PmapxError


class CannotAudit(PmapxError, TypeError, code="PMX691"):
    """pmapx.audit was given something that is not a function.

    It takes the mapped function and its arguments apart, ``pmapx.audit(step, state, batch)``, and
    not the result of a call.
    """

    def __init__(self, given: Any) -> None:  # noqa: D107
        super().__init__(
            f"audit expects a function, got {type(given).__name__}.",
            fix="pass the mapped function first and its arguments after it: "
            "pmapx.audit(step, state, batch).",
        )


class TopologyNeedsPmap(PmapxError, ValueError, code="PMX692"):
    """A function that has a mesh of its own cannot be audited for another topology.

    ``jax.shard_map`` is given its mesh when it is written, and that mesh holds devices. What
    ``pmapx.pmap`` returns chooses its devices when it is called, so it can be laid out on any.
    """

    def __init__(self, function: str, topology: str) -> None:  # noqa: D107
        super().__init__(
            f"{function} cannot be laid out on topology {topology!r}: its shard_map has a mesh of "
            "its own.",
            fix="audit what pmapx.pmap returns, or build the mesh of the topology's devices "
            "(pmapx.audit.topology.devices_of) and audit without topology=.",
        )
