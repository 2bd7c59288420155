import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names, syntax
from pmapx._src.analysis.facts import Invocation
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Function
from pmapx._src.lint.finding import Finding
from pmapx._src.lint.rules import Rule

_CONSTANT_ARRAYS = ("ones", "zeros", "full", "ones_like", "zeros_like", "empty", "arange")
_WAITS = frozenset(
    {"jax.block_until_ready", "jax.device_get", "numpy.asarray", "numpy.array", "builtins.float"}
)


class HandMadeBarrier(Rule):
    """A ``psum`` of ones is used as a barrier.

    **What.** A pmapped function that only calls ``psum`` is called with constants; the program
    waits for the result, and discards it or only compares it.

    **Why.** This used to synchronize processes. Under the new pmap, processes may reach it while
    they run different programs, and fail with ``Core halted unexpectedly``. JAX has barriers.

    **Before**

    ```python
    import jax
    import jax.numpy as jnp

    jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(
        jnp.ones(jax.local_device_count())
    ).block_until_ready()
    ```

    **After**

    ```python
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("checkpoint written")
    ```

    **Safety.** Safe if nothing uses the sum. ``pmapx.barrier(name, timeout=...)`` also reports
    which processes are missing after the timeout.

    **Guide.** "``JaxRuntimeError: INTERNAL: Core halted unexpectedly``".
    """

    code = "PMX532"
    names = known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        for node, call in module.facts.invocations.items():
            if (
                isinstance(node, ast.Call)
                and _only_sums(call)
                and _is_given_constants(module, node)
                and _is_waited_on(module, node)
            ):
                yield self.finding(
                    module.place(node),
                    "a psum of constants is used as a barrier",
                    hint='multihost_utils.sync_global_devices("name"), or pmapx.barrier("name")',
                )


def _only_sums(call: Invocation) -> bool:
    for fact in call.mapped.function:
        if isinstance(fact, Function):
            result = syntax.result(fact.node)
            seen = fact.module.facts.calls.get(result) if result is not None else None
            return seen is not None and bool(seen.names & known_names.SUM_OVER_AXIS)
    return False


def _is_given_constants(module: Module, call: ast.Call) -> bool:
    if len(call.args) != 1:
        return False
    results = module.facts.results.get(call.args[0], frozenset())
    return any(
        name.rpartition(".")[0] in ("jax.numpy", "numpy")
        and name.rpartition(".")[2] in _CONSTANT_ARRAYS
        for name in results
    )


def _is_waited_on(module: Module, call: ast.Call) -> bool:
    """The result is waited on and only compared, or not used at all."""
    node: ast.AST = call
    is_waited = False
    while True:
        parent = module.parent(node)
        if isinstance(parent, ast.Expr):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr == "block_until_ready":
            is_waited = True
        elif isinstance(parent, ast.Call) and node in parent.args:
            called = module.facts.calls.get(parent)
            if called is None or not called.names & _WAITS:
                return False
            is_waited = True
        elif isinstance(parent, ast.Return):
            return is_waited
        elif isinstance(parent, ast.Assign):
            return is_waited and _is_only_compared(module, parent)
        elif not isinstance(parent, (ast.Attribute, ast.Subscript, ast.Call)):
            return False
        node = parent


def _is_only_compared(module: Module, bound: ast.Assign) -> bool:
    """Returns whether a count is checked, as in ``if x[0] != n: raise``, and that is all."""
    if len(bound.targets) != 1 or not isinstance(bound.targets[0], ast.Name):
        return False
    name = bound.targets[0].id
    around = module.functions_around(bound)
    if not around:
        return False
    after = (bound.end_lineno or bound.lineno, bound.end_col_offset or 0)
    return all(
        _is_in_a_check(module, node)
        for node in syntax.walk(around[0])
        if isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and (node.lineno, node.col_offset) > after
    )


def _is_in_a_check(module: Module, node: ast.AST) -> bool:
    while isinstance(node, ast.expr | ast.FormattedValue | ast.keyword):
        if isinstance(node, ast.Compare):
            return True
        node = module.parent(node)
    return isinstance(node, ast.Raise | ast.Assert)
