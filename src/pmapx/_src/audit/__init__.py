"""``pmapx.audit``: what a mapped function replicates, communicates and holds.

``examine`` is an audit from top to bottom. ``subject`` traces and compiles the function, for its
own devices or ahead of time for a target topology (``topology``). ``hlo`` reads the compiled
program, and ``donation`` pairs arguments with outputs. The result is a report (``report``), and
``findings`` point out what to fix in it. ``what_if`` compiles a step with its state sharded; of a
pmap, from the function that each device runs. ``running`` audits a program while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmapx._src.audit.report.audit_report import AuditReport


def audit(
    f: Callable[..., Any] | None = None,
    *args: Any,
    topology: str | None = None,
    scaling: str | Sequence[str] = (),
    scale: Mapping[str, int | None] | None = None,
    build: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None,
    what_if: str | None = None,
    **kwargs: Any,
) -> AuditReport:
    """Reports what a mapped function replicates, sends and holds, without running it.

    It is traced and compiled for the arguments. Its jaxpr shows which values are equal on all
    devices, and the compiled program its collectives and its memory.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> def step(w, x):
      ...     return w - jax.lax.pmean(x.mean() * w, "i")
      >>> n = jax.device_count()
      >>> report = pmapx.audit(pmapx.pmap(step, "i"), np.ones((n, 3)), np.ones((n, 5)))
      >>> print(*(leaf.path for leaf in report.functions[0].arguments))
      w x
      >>> report.functions[0].outputs[0].is_equal
      True

    Args:
      f: what ``pmapx.pmap``, ``jax.pmap`` under ``pmapx.install()``, or ``jax.jit`` of a
        ``jax.shard_map`` returned. Any other function is audited as ``jax.jit`` of it.
      *args: its arguments, or ``jax.ShapeDtypeStruct`` in their place.
      topology: a target topology to compile for ahead of time, such as ``"v5e:16x16"``; the mapped
        axis grows to its devices, and so does a sharded batch. By default, the devices of this
        process.
      scaling: topologies for a table of what a device sends and holds on each, and of what grows
        with the number of devices: ``"v5e:8,64,256"``, or a list of names.
      scale: what grows on a topology, if the program does not show it: by the name of an argument,
        the dimension that grows, or None if it keeps its shape. ``{"batch": 0, "state": None}``.
      build: a function that takes the devices and returns the mapped function and a tuple of its
        arguments for them, in place of ``f`` and its arguments.
      what_if: ``"fsdp"`` adds the cost with parameters and optimizer state sharded over the data
        axis, next to the cost of the function as it is.
      **kwargs: its keyword arguments.

    Returns:
      A report: print it, or use its ``to_dict``, ``to_json`` and ``to_html``.
    """
    from pmapx._src.audit import examine

    return examine.report_on(f, args, kwargs, topology, scaling, build, scale, what_if)
