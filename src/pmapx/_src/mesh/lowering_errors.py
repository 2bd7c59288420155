"""Errors that are raised when a program is lowered, not when it is traced.

``jax.eval_shape`` and ``jax.make_jaxpr`` only trace, and a pmap that needs more devices than there
are can be traced. A trace cannot know whether its program will run, so the error becomes part of
it: an identity on the results that cannot be lowered.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_refused = Primitive("pmapx_refused")


def refused(result: Any, error: Exception) -> Any:
    """Returns a traced result whose program raises ``error`` when it is lowered."""
    error.__traceback__ = None  # It would keep the frames of this trace alive.
    return jax.tree.map(lambda leaf: _refused.bind(leaf, error=error), result)


def _refuse(*_: Any, error: Exception) -> Any:
    raise error


def _transpose(cotangent: Any, x: Any, *, error: Exception) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    return [_refused.bind(cotangent, error=error)]


_refused.def_impl(_refuse)
_refused.def_abstract_eval(lambda x, *, error: x)
ad.deflinear2(_refused, _transpose)
batching.primitive_batchers[_refused] = lambda args, dimensions, *, error: (
    _refused.bind(args[0], error=error),
    dimensions[0],
)
mlir.register_lowering(_refused, _refuse)
