from collections.abc import Iterator

from pmapx._src.analysis.module import Module
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.references import uses_of
from pmapx._src.lint.renames import MovedFunction
from pmapx._src.lint.rules import Rule

_PJIT = MovedFunction(
    "jax.experimental.pjit",
    "pjit",
    "jax.jit",
    (
        None, "in_shardings", "out_shardings", "static_argnums", "static_argnames",
        "donate_argnums", "donate_argnames", "keep_unused", "device", "backend", "inline",
    ),
    # Of older releases, and what cannot be passed to jit by keyword.
    refused=frozenset({"in_axis_resources", "out_axis_resources", "abstracted_axes", "fun"}),
    unsafe=frozenset({"in_shardings", "out_shardings"}),
)  # fmt: skip


class PjitUse(Rule):
    """``pjit`` is deprecated.

    **What.** A use of ``jax.experimental.pjit.pjit``. It is reported with ``--target-jax``, or if
    the rule is selected.

    **Why.** ``jax.jit`` takes shardings since JAX 0.4, and ``pjit`` warns since JAX 0.8. The two
    differ in where a ``PartitionSpec`` gets its mesh: ``pjit`` reads the one of ``with mesh:``,
    which is deprecated too (PMX562), ``jit`` that of ``jax.set_mesh``.

    **Before**

    ```python
    from jax.experimental.pjit import pjit

    step = pjit(train_step, donate_argnums=0)
    ```

    **After**

    ```python
    from jax import jit

    step = jit(train_step, donate_argnums=0)
    ```

    **Safety.** The fix is safe without ``in_shardings`` and ``out_shardings``. With them it is
    unsafe: a ``PartitionSpec`` needs ``jax.set_mesh`` around the call, and ``None`` means
    replicated to ``pjit`` and unspecified to ``jit``.

    **Guide.** The guide does not mention it.
    """

    code = "PMX561"
    names = (_PJIT.module,)

    def check(self, module: Module) -> Iterator[Finding]:
        for reference, _ in uses_of(module, self.names):
            # PMX519 reports what else was in the module.
            if reference.name not in (_PJIT.module, _PJIT.old):
                continue
            yield self.finding(
                module.place(reference.node),
                "pjit is deprecated since JAX 0.8",
                hint="jax.jit, with in_shardings and out_shardings as NamedSharding, or as "
                "PartitionSpec inside jax.set_mesh",
                fix=_PJIT.fix(module, reference),
                is_deprecation=True,
            )
