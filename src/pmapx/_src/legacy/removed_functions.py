"""Functions and classes that JAX removed and that have no equivalent under another name."""

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.map.pmap import pmap


class _ArrayKind(type):
    """The metaclass of classes for which ``isinstance`` is the result of ``holds``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, jax.Array) and bool(cls.holds(instance))  # type: ignore[attr-defined]


class PRNGKeyArray(metaclass=_ArrayKind):
    """``jax.random.PRNGKeyArray``: an array of typed PRNG keys."""

    @staticmethod
    def holds(x: jax.Array) -> bool:
        return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


class ShardedDeviceArray(metaclass=_ArrayKind):
    """``jax.interpreters.pxla.ShardedDeviceArray``: an array on several devices."""

    @staticmethod
    def holds(x: jax.Array) -> bool:
        return not isinstance(x, jax.core.Tracer) and x.sharding.num_devices > 1


class AxisFrame(int):
    """What ``jax.core.axis_frame`` returned: an object with the axis size, or later the size."""

    name: Hashable

    @property
    def size(self) -> int:
        return int(self)


def axis_frame(axis_name: Hashable) -> AxisFrame:
    """``jax.core.axis_frame``: the mapped axis of a name; NameError if there is none."""
    frame = AxisFrame(jax.lax.axis_size(axis_name))  # type: ignore[arg-type]
    frame.name = axis_name
    return frame


def raise_to_shaped(aval: Any, weak_type: bool | None = None) -> Any:
    """``jax.core.raise_to_shaped``: all abstract values are shaped today."""
    return aval if weak_type is None else aval.update(weak_type=weak_type)


def soft_pmap(fun: Callable[..., Any], axis_name: Hashable = None, in_axes: Any = 0) -> Any:
    """``jax.soft_pmap``: a pmap whose axis may be larger than the number of devices."""
    return pmap(fun, axis_name, in_axes=in_axes, oversubscribe=True)


def disable_x64() -> Any:
    """``jax.experimental.disable_x64``: a context without 64-bit types."""
    return jax.enable_x64(False)


def _index_operation(method: str) -> Callable[..., jax.Array]:
    def operation(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
        return getattr(jnp.asarray(x).at[idx], method)(y, **options)

    operation.__doc__ = f"``x.at[idx].{method}(y)``."
    return operation


index_update = _index_operation("set")
index_add = _index_operation("add")
index_mul = _index_operation("multiply")
index_min = _index_operation("min")
index_max = _index_operation("max")
index = np.s_
"""``jax.ops.index``: ``index[1:, 0]`` as an object."""


def shuffle(key: Any, x: Any, axis: int = 0) -> jax.Array:
    """``jax.random.shuffle``: an independent permutation along an axis."""
    return jax.random.permutation(key, x, axis, independent=True)


def tie_in(x: Any, y: Any) -> Any:
    """``jax.lax.tie_in``: since omnistaging, ``y``."""
    return y


def pvary(x: Any, axis_name: Any) -> Any:
    """``jax.lax.pvary``: marks a value as varying over a mesh axis."""
    return jax.lax.pcast(x, axis_name, to="varying")


def msort(a: Any) -> jax.Array:
    """``jax.numpy.msort``: sorted along the first axis."""
    return jnp.sort(a, axis=0)


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """``jax.numpy.in1d``: ``isin``, flattened."""
    return jnp.isin(ar1, ar2, assume_unique=assume_unique, invert=invert).ravel()


def asscalar(a: Any) -> Any:
    """``jax.numpy.asscalar``: a size-1 array as a Python scalar."""
    return a.item()


def with_old_keywords(
    function: Callable[..., Any], renamed: dict[str, str], first: str | None = None
) -> Callable[..., Any]:
    """Returns a function of JAX that accepts ``renamed`` keywords, and ``first`` as a keyword."""

    @functools.wraps(function)
    def accepting(*args: Any, **kwargs: Any) -> Any:
        if first in kwargs:
            args = (kwargs.pop(first), *args)
        return function(*args, **{renamed.get(name, name): kwargs[name] for name in kwargs})

    return accepting


def safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """``jax.util.safe_map``: ``map`` over sequences of equal length."""
    return [f(*each) for each in zip(*args, strict=True)]


def safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    """``jax.util.safe_zip``: ``zip`` of sequences of equal length."""
    return list(zip(*args, strict=True))


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """``jax.util.unzip2``: the first and the second items."""
    listed = list(pairs)
    return tuple(first for first, _ in listed), tuple(second for _, second in listed)


def split_list(args: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """``jax.util.split_list``: parts of the given lengths, and the rest."""
    items, parts = list(args), []
    for count in counts:
        parts.append(items[:count])
        items = items[count:]
    return [*parts, items]
