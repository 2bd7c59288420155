"""The function over the global batch that a verdict claims to equal the mapped body."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal, Var

from pmapx._src.batch_parallel import collectives
from pmapx._src.batch_parallel.interpreter import Path
from pmapx._src.batch_parallel.steps import dtype_of
from pmapx._src.batch_parallel.verdict import Verdict
from pmapx._src.replication import jaxprs, shard_map_body


def global_function(verdict: Verdict) -> Callable[..., Any]:
    """Returns a function of the global batch: the body, with its collectives replaced.

    It takes what the body takes, sharded arguments concatenated along their batch axes, has no
    mapped axis, and runs under `jax.jit`.

    >>> import jax, numpy as np
    >>> from pmapx._src.batch_parallel.verdict import decide
    >>> def body(x):
    ...     return jax.lax.psum(x.mean(), "i")
    >>> verdict = decide(body, (np.ones(2),), (0,), axis_name="i", axis_size=4)
    >>> float(global_function(verdict)(np.arange(8.0)))  # psum of a mean: 4 times the mean
    14.0
    """
    traces = verdict.traces
    if traces is None or not verdict.is_batch_parallel:
        raise ValueError(
            f"not a function of the global batch: {'; '.join(map(str, verdict.reasons))}"
        )

    def function(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(arguments)
        results = _Evaluation(verdict).jaxpr(traces.global_, leaves, ())
        return jax.tree.unflatten(traces.out_tree, results)

    return function


class _Evaluation:
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.changed = {*verdict.powers, *(path for path, _ in verdict.constants)}

    def jaxpr(self, program: Any, inputs: Sequence[Any], path: Path) -> list[Any]:
        jaxpr = jaxprs.opened(program)
        env: dict[Var, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        env.update(zip(jaxpr.constvars, getattr(program, "consts", ()), strict=False))

        def read(atom: Any, at: Path, k: int) -> Any:
            constant = self.verdict.constants.get((at, k))
            if constant is not None:
                return jnp.asarray(constant)
            return atom.val if isinstance(atom, Literal) else env[atom]

        for index, eqn in enumerate(jaxpr.eqns):
            at = (*path, index)
            operands = [read(atom, at, k) for k, atom in enumerate(eqn.invars)]
            env.update(zip(eqn.outvars, self.equation(eqn, operands, at), strict=True))
        at = (*path, "out")
        return [read(atom, at, k) for k, atom in enumerate(jaxpr.outvars)]

    def equation(self, eqn: JaxprEqn, operands: list[Any], at: Path) -> Sequence[Any]:
        name = eqn.primitive.name
        program = shard_map_body.callee(eqn)
        if name in collectives.RULES:
            return self.collective(eqn, operands, at)
        if program is not None:
            return self.jaxpr(program, operands, at)
        if any(path[: len(at)] == at for path in self.changed):
            loops = {"scan": self.scan, "while": self.while_loop, "cond": self.cond}
            if name in loops:
                return loops[name](eqn, operands, at)
        results = eqn.primitive.bind(*operands, **eqn.params)
        return results if eqn.primitive.multiple_results else [results]

    def collective(self, eqn: JaxprEqn, operands: list[Any], at: Path) -> list[Any]:
        """A collective over one device, times a power of n."""
        name, params = eqn.primitive.name, eqn.params
        if name == "axis_index":
            return [jnp.zeros((), dtype_of(eqn.outvars[0]))]
        if name.startswith("all_gather") and not params["tiled"]:
            operands = [jnp.expand_dims(x, params["all_gather_dimension"]) for x in operands]
        if name == "reduce_scatter" and not params["tiled"]:
            operands = [jnp.squeeze(x, params["scatter_dimension"]) for x in operands]
        powers = self.verdict.powers.get(at, (0,) * len(operands))
        return [_times(x, self.verdict.axis_size, p) for x, p in zip(operands, powers, strict=True)]

    def scan(self, eqn: JaxprEqn, operands: list[Any], at: Path) -> list[Any]:
        counts = jaxprs.scan_counts(eqn)
        assert counts is not None
        (num_consts, num_carry), params = counts, eqn.params
        consts, rest = operands[:num_consts], operands[num_consts:]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self.jaxpr(params["jaxpr"], [*consts, *carry, *x], (*at, "body"))
            return results[:num_carry], results[num_carry:]

        carry, ys = jax.lax.scan(
            step,
            rest[:num_carry],
            rest[num_carry:],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *ys]

    def cond(self, eqn: JaxprEqn, operands: list[Any], at: Path) -> list[Any]:
        branches = [
            lambda *arguments, k=k, branch=branch: self.jaxpr(
                branch, arguments, (*at, f"branch {k}")
            )
            for k, branch in enumerate(eqn.params["branches"])
        ]
        return list(jax.lax.switch(operands[0], branches, *operands[1:]))

    def while_loop(self, eqn: JaxprEqn, operands: list[Any], at: Path) -> list[Any]:
        of_cond = eqn.params["cond_nconsts"]
        of_body = of_cond + eqn.params["body_nconsts"]

        def goes_on(carry: Any) -> Any:
            inputs = [*operands[:of_cond], *carry]
            return self.jaxpr(eqn.params["cond_jaxpr"], inputs, (*at, "cond"))[0]

        def step(carry: Any) -> Any:
            inputs = [*operands[of_cond:of_body], *carry]
            return self.jaxpr(eqn.params["body_jaxpr"], inputs, (*at, "body"))

        return list(jax.lax.while_loop(goes_on, step, operands[of_body:]))


def _times(x: Any, n: int, power: int) -> Any:
    if power == 0:
        return x
    factor = n ** abs(power)
    if power > 0:
        return (x * factor).astype(x.dtype)
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    return (x // factor if is_integer else x / factor).astype(x.dtype)
