"""The options of ``pmap``, checked when it is called."""

import dataclasses
import operator
from collections.abc import Callable, Hashable
from numbers import Integral
from typing import Any, Literal, get_args

import jax
import numpy as np

from pmapx._src import errors
from pmapx._src.trees import names

Reshard = Literal["allow", "warn", "error"]
View = Literal["local", "global"]


@dataclasses.dataclass(frozen=True)
class Options:
    axis_name: Hashable | None
    in_axes: Any
    out_axes: Any
    static_argnums: tuple[int, ...]
    donated_argnums: tuple[int, ...]
    devices: tuple[jax.Device, ...] | None
    backend: str | None
    axis_size: int | None
    reshard: Reshard
    oversubscribe: bool
    compiler_options: dict[str, Any] | None
    view: View = "local"
    check_replicas: bool = False

    def __post_init__(self) -> None:
        for name, value, kind in (("reshard", self.reshard, Reshard), ("view", self.view, View)):
            if value not in (choices := get_args(kind)):
                raise errors.UnknownOption(name, value, " or ".join(map(repr, choices)))
        size = self.axis_size
        if size is not None and not (isinstance(size, Integral) and size > 0):
            raise errors.UnknownOption("axis_size", size, "a positive integer")
        if both := sorted(set(self.static_argnums) & set(self.donated_argnums)):
            problem = f"argument {both[0]} is in static_broadcasted_argnums too"
            raise errors.BadArgnums("donate_argnums", self.donated_argnums, problem)


def check_argnums(which: str, argnums: Any, fun: Callable[..., Any]) -> tuple[int, ...]:
    """Returns argument positions as a tuple, negative ones counted from the front."""
    try:
        listed = (operator.index(argnums),) if np.ndim(argnums) == 0 else argnums
        listed = tuple(map(operator.index, listed))
    except (TypeError, ValueError):
        problem = f"{argnums!r} is neither an integer nor a collection of integers"
        raise errors.BadArgnums(which, argnums, problem) from None
    if all(argnum >= 0 for argnum in listed):
        return tuple(sorted(set(listed)))
    count = len(names.parameter_names(fun))
    if any(argnum < -count for argnum in listed):
        problem = f"the function has {count} positional parameters"
        raise errors.BadArgnums(which, argnums, problem)
    return tuple(sorted({argnum % count if argnum < 0 else argnum for argnum in listed}))
