import ast
from collections.abc import Iterator

from pmapx._src.analysis import known_names
from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import Confidence
from pmapx._src.lint.finding import Finding, Fix
from pmapx._src.lint.rules import Rule
from pmapx._src.source.rewriting.edits import replacing

_LOOPS = (ast.For, ast.comprehension)


class ArangeOverShards(Rule):
    """A loop over shards uses ``jnp.arange``.

    **What.** ``for i in jnp.arange(n): ... x[i]``, where ``x`` came out of a pmap or ``n`` is a
    number of devices.

    **Why.** ``i`` is then an array, and ``x[i]`` a gather with an index that is known only at run
    time: each iteration transfers all of ``x`` to every device. In a multi-process program it
    fails. Python's ``range`` yields ints.

    **Before**

    ```python
    import jax
    import jax.numpy as jnp

    y = jax.pmap(lambda v: v * 2)(x)
    for i in jnp.arange(jax.device_count()):
        print(y[i])
    ```

    **After**

    ```python
    import jax
    import pmapx

    y = jax.pmap(lambda v: v * 2)(x)
    for i in range(jax.local_device_count()):
        print(pmapx.local_slice(y, i))
    ```

    **Safety.** The same shards. The fix only replaces ``jnp.arange`` by ``range``; it is unsafe,
    since the loop may use ``i`` as an array elsewhere.

    **Guide.** "``JaxRuntimeError: INVALID_ARGUMENT: CopyArrays ... same size``", *use static
    indices*.
    """

    code = "PMX531"
    names = known_names.DEVICE_COUNTS | known_names.DEVICES | known_names.PMAP

    def check(self, module: Module) -> Iterator[Finding]:
        seen = set()
        for node, indexing in module.facts.indexings.items():
            if indexing.how == "arange":
                seen.add(node)
                yield self._finding(module, node, indexing.stacked.confidence)
        for counted, call in module.facts.calls.items():
            if "jax.numpy.arange" not in call.names or not _counts_devices(module, counted):
                continue
            loop = module.parent(counted)
            if isinstance(loop, _LOOPS) and loop.iter is counted:
                for node in _indexed_by(module, loop):
                    if node not in seen:
                        yield self._finding(module, node, Confidence.MEDIUM)

    def _finding(self, module: Module, node: ast.AST, confidence: Confidence) -> Finding:
        return self.finding(
            module.place(node),
            "the index comes from jnp.arange: each iteration is a gather over all devices",
            confidence=confidence,
            hint="count with range(...), and read shards with pmapx.local_slice(x, i)",
            fix=_with_range(module, node),
        )


def _with_range(module: Module, node: ast.AST) -> Fix | None:
    """Replaces ``jnp.arange`` in the innermost loop whose variable is the index."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    around = module.parent(node)
    while isinstance(index, ast.Name) and not isinstance(around, ast.Module):
        loops = [around] if isinstance(around, ast.For) else getattr(around, "generators", [])
        for loop in loops:
            if isinstance(loop.target, ast.Name) and loop.target.id == index.id:
                counted = loop.iter
                called = module.facts.calls.get(counted)
                is_arange = called is not None and called.names == {"jax.numpy.arange"}
                if is_arange and isinstance(counted, ast.Call) and not counted.keywords:
                    edit = replacing(module.place(counted.func), "range")
                    return Fix((edit,), is_safe=False)
                return None
        around = module.parent(around)
    return None


def _counts_devices(module: Module, call: ast.AST) -> bool:
    return isinstance(call, ast.Call) and any(
        module.facts.is_result(arg, known_names.DEVICE_COUNTS) for arg in call.args
    )


def _indexed_by(module: Module, loop: ast.For | ast.comprehension) -> Iterator[ast.AST]:
    if not isinstance(loop.target, ast.Name):
        return
    body = loop if isinstance(loop, ast.For) else module.parent(module.parent(loop.iter))
    for node in ast.walk(body):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Name)
            and node.slice.id == loop.target.id
        ):
            yield node
