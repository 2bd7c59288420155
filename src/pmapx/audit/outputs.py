"""What of a mapped function's outputs varies between devices, and why, in the user's words.

``replication`` says it of the body of one ``shard_map``. Here the whole traced program is read: the
functions around, several ``shard_map``, and the way from each output back to the line that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from pmapx import describe
from pmapx.audit import jaxprs, places, replication
from pmapx.audit.replication import Variation


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of a mapped function.

    Attributes:
      path: where it is in the result, as ``['batch_stats']['mean']``; empty for a single output.
      variation: over which axes it may differ between devices, and since where.
      made_at: the line that made it, as ``train.py:88``; None when that is not known.
    """

    path: str
    variation: Variation
    made_at: str | None

    def __str__(self) -> str:
        """Says it in a sentence, with the line where to look."""
        name = f"output {self.path}" if self.path else "the output"
        if self.variation.is_replicated:
            return f"{name} is equal on all devices"
        over = ", ".join(repr(axis) for axis in sorted(self.variation.axes, key=str))
        since = self.variation.since or "unknown code"
        if since.startswith("`"):
            return f"{name} varies over {over} since {since}"
        before = f" before {self.made_at}" if self.made_at else ""
        return f"{name} varies over {over}: no pmean{before} of what comes from {since}"


@dataclasses.dataclass(frozen=True)
class _Value:
    """What is known of a value outside of any ``shard_map``.

    Attributes:
      label: the one argument that it was made from, if it was one.
      variation: that of the value in the ``shard_map`` that it came out of.
      made_at: the line that made it.
      is_equal: it is an argument that comes in equal on all devices.
    """

    label: str | None = None
    variation: Variation = dataclasses.field(default_factory=lambda: Variation(frozenset(), None))
    made_at: str | None = None
    is_equal: bool = False


def outputs_of(
    traced: jax.stages.Traced, *, equal: Sequence[int] = (), parameters: Sequence[str] = ()
) -> list[Output]:
    """Says of each output of a mapped function whether it is equal on all devices, and why not.

    Args:
      traced: what ``trace`` returned, of a function of ``pmapx.pmap`` or of a jitted ``shard_map``.
      equal: the positions of arguments that are stacked, a row a device, and whose rows are equal:
        a replicated train state. Whether a step keeps it so is then the question that is answered.
      parameters: the names of the function's positional parameters, for the sentences.

    >>> import jax, numpy as np, pmapx
    >>> def step(w, x):
    ...     return w - jax.lax.pmean(x, "i"), x.sum()
    >>> n = jax.device_count()
    >>> traced = pmapx.pmap(step, "i").trace(np.ones((n, 3)), np.ones((n, 3)))
    >>> [output.variation.is_replicated for output in outputs_of(traced, equal=[0])]
    [True, False]
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(traced.args_info)
    values = []
    for index, (path, _) in enumerate(paths):
        label = describe.leaf(index, tree, range(len(paths)), parameters)
        is_positional, position = path[0].idx == 0, getattr(path[1], "idx", None)
        values.append(_Value(label, is_equal=is_positional and position in equal))
    top = traced.jaxpr.jaxpr
    found = _outside(top, _aligned(values, top))
    outputs, _ = jax.tree_util.tree_flatten_with_path(traced.out_info)
    return [
        Output(jax.tree_util.keystr(path), value.variation, value.made_at)
        for (path, _), value in zip(outputs, found, strict=True)
    ]


def _aligned(values: list[_Value], jaxpr: Jaxpr) -> list[_Value]:
    """Leaves room for constants, which come before the arguments in newer releases."""
    return [_Value()] * (len(jaxpr.invars) - len(values)) + values


def _outside(jaxpr: Jaxpr, inputs: Sequence[_Value]) -> list[_Value]:
    """Follows values through what is outside of any ``shard_map``."""
    env: dict[Var, _Value] = dict.fromkeys(jaxpr.constvars, _Value())
    env.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _Value:
        return _Value() if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        callee = _callee(eqn)
        if eqn.primitive.name == "shard_map":
            results = _inside(eqn, operands)
        elif callee is not None:
            results = _outside(callee, operands)
        else:
            results = [_joined(eqn, operands)] * len(eqn.outvars)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _callee(eqn: JaxprEqn) -> Jaxpr | None:
    """Returns what an equation calls with its operands as they are, if it does that alone."""
    if replication.RULES.get(eqn.primitive.name) is not replication.RULES["jit"]:
        return None
    for inner in jaxprs.subjaxprs(eqn.params):
        if len(inner.invars) == len(eqn.invars) and len(inner.outvars) == len(eqn.outvars):
            return inner
    return None


def _joined(eqn: JaxprEqn, operands: Sequence[_Value]) -> _Value:
    labels = {value.label for value in operands if value.label}
    axes = frozenset(axis for value in operands for axis in value.variation.axes)
    since = next((value.variation.since for value in operands if value.variation.since), None)
    made_at = next((value.made_at for value in operands if value.made_at), None)
    line = None if places.is_added(eqn) else places.line_of(eqn)
    return _Value(
        label=labels.pop() if len(labels) == 1 else None,
        variation=Variation(axes, since),
        made_at=line or made_at,
        # A reshape, say, of an argument whose rows are equal has equal rows; a sum has not.
        is_equal=len(operands) == 1 and operands[0].is_equal and places.is_added(eqn),
    )


def _inside(eqn: JaxprEqn, operands: Sequence[_Value]) -> list[_Value]:
    """Reads the body of a ``shard_map``."""
    body = jaxprs.opened(eqn.params["jaxpr"])
    labels = [value.label or f"input {k} of the shard_map" for k, value in enumerate(operands)]
    declared = [
        {} if value.is_equal else dict.fromkeys(axes, label)
        for value, axes, label in zip(operands, jaxprs.in_axes(eqn), labels, strict=True)
    ]
    variations = replication.body_outputs(jaxprs.manual_axes(eqn), body, declared)
    makers = {var: made for made in body.eqns for var in made.outvars}
    return [
        _Value(variation=variation, made_at=_line_behind(atom, makers))
        for variation, atom in zip(variations, body.outvars, strict=True)
    ]


def _line_behind(atom: Any, makers: dict[Any, JaxprEqn]) -> str | None:
    """Returns the user's line that made a value; what pmapx added after it is passed over."""
    while not isinstance(atom, Literal) and atom in makers:
        eqn = makers[atom]
        if not places.is_added(eqn) or not eqn.invars:
            return places.line_of(eqn)
        atom = eqn.invars[0]
    return None
