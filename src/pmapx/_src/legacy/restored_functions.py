"""Functions and classes that JAX had under other names, with the meaning that they had."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.map.pmap import pmap


class _AnArray(type):
    """The type of classes that stand for arrays of some kind: ``isinstance`` asks ``holds``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, jax.Array) and bool(cls.holds(instance))  # type: ignore[attr-defined]

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(cls, subclass)


class PRNGKeyArray(metaclass=_AnArray):
    """``jax.random.PRNGKeyArray``: an array of typed PRNG keys."""

    @staticmethod
    def holds(x: jax.Array) -> bool:
        """Says whether an array is one."""
        return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


class ShardedDeviceArray(metaclass=_AnArray):
    """``jax.interpreters.pxla.ShardedDeviceArray``: a result of pmap, an array on many devices."""

    @staticmethod
    def holds(x: jax.Array) -> bool:
        """Says whether an array is one."""
        return not isinstance(x, jax.core.Tracer) and x.sharding.num_devices > 1


class AxisFrame(int):
    """What ``jax.core.axis_frame`` returned: the axis with its size, or later the size itself."""

    name: Hashable

    @property
    def size(self) -> int:
        """The size of the axis."""
        return int(self)


def axis_frame(axis_name: Hashable) -> AxisFrame:
    """``jax.core.axis_frame``: the mapped axis of a name; NameError if there is none."""
    frame = AxisFrame(jax.lax.axis_size(axis_name))  # type: ignore[arg-type]
    frame.name = axis_name
    return frame


def raise_to_shaped(aval: Any, weak_type: bool | None = None) -> Any:
    """``jax.core.raise_to_shaped``: no abstract value holds a number any more."""
    return aval if weak_type is None else aval.update(weak_type=weak_type)


def soft_pmap(fun: Callable[..., Any], axis_name: Hashable = None, in_axes: Any = 0) -> Any:
    """``jax.soft_pmap``: a map over more elements than devices."""
    return pmap(fun, axis_name, in_axes=in_axes, oversubscribe=True)


def host_ids(backend: str | None = None) -> list[int]:
    """``jax.host_ids``: the numbers of all processes."""
    return list(range(jax.process_count(backend)))


def enable_x64(new_val: bool = True) -> Any:
    """``jax.experimental.enable_x64``: a block with types of 64 bits."""
    return jax.enable_x64(new_val)


def disable_x64() -> Any:
    """``jax.experimental.disable_x64``: a block without types of 64 bits."""
    return jax.enable_x64(False)


def clear_backends() -> None:
    """``jax.clear_backends``: lets the next use of JAX start its devices anew."""
    from jax.extend.backend import clear_backends

    clear_backends()


def _updated(method: str, x: Any, idx: Any, y: Any, options: dict[str, Any]) -> jax.Array:
    updated: jax.Array = getattr(jnp.asarray(x).at[idx], method)(y, **options)
    return updated


def index_update(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
    """``jax.ops.index_update``: ``x.at[idx].set(y)``."""
    return _updated("set", x, idx, y, options)


def index_add(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
    """``jax.ops.index_add``: ``x.at[idx].add(y)``."""
    return _updated("add", x, idx, y, options)


def index_mul(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
    """``jax.ops.index_mul``: ``x.at[idx].multiply(y)``."""
    return _updated("multiply", x, idx, y, options)


def index_min(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
    """``jax.ops.index_min``: ``x.at[idx].min(y)``."""
    return _updated("min", x, idx, y, options)


def index_max(x: Any, idx: Any, y: Any, **options: Any) -> jax.Array:
    """``jax.ops.index_max``: ``x.at[idx].max(y)``."""
    return _updated("max", x, idx, y, options)


index = np.s_
"""``jax.ops.index``: ``index[1:, 0]`` is that index."""


def shuffle(key: Any, x: Any, axis: int = 0) -> jax.Array:
    """``jax.random.shuffle``: the elements along an axis in another order, each line its own."""
    return jax.random.permutation(key, x, axis, independent=True)


def tie_in(x: Any, y: Any) -> Any:
    """``jax.lax.tie_in``: since omnistaging, ``y``."""
    return y


def pvary(x: Any, axis_name: Any) -> Any:
    """``jax.lax.pvary``: a value of which every device has its own."""
    return jax.lax.pcast(x, axis_name, to="varying")


def msort(a: Any) -> jax.Array:
    """``jax.numpy.msort``: sorted along the first axis."""
    return jnp.sort(a, axis=0)


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    """``jax.numpy.in1d``: which elements of one array are in another, flattened."""
    return jnp.isin(ar1, ar2, assume_unique=assume_unique, invert=invert).ravel()


def asscalar(a: Any) -> Any:
    """``jax.numpy.asscalar``: an array of one element as a number of Python."""
    return a.item()


def clip(jax_clip: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``jax.numpy.clip`` with the names ``a``, ``a_min`` and ``a_max`` beside today's."""

    @functools.wraps(jax_clip)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if "a" in kwargs:
            args = (kwargs.pop("a"), *args)
        for old, new in (("a_min", "min"), ("a_max", "max")):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
        return jax_clip(*args, **kwargs)

    return clip


def reshape(jax_reshape: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``jax.numpy.reshape`` with the name ``newshape`` beside today's."""

    @functools.wraps(jax_reshape)
    def reshape(*args: Any, **kwargs: Any) -> Any:
        if "newshape" in kwargs:
            kwargs["shape"] = kwargs.pop("newshape")
        return jax_reshape(*args, **kwargs)

    return reshape


def safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """``jax.util.safe_map``: map over sequences of one length."""
    return [f(*each) for each in zip(*args, strict=True)]


def safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    """``jax.util.safe_zip``: zip of sequences of one length."""
    return list(zip(*args, strict=True))


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """``jax.util.unzip2``: the firsts and the seconds."""
    listed = list(pairs)
    return tuple(first for first, _ in listed), tuple(second for _, second in listed)


def split_list(args: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """``jax.util.split_list``: parts of so many items each, and the rest."""
    items, parts = list(args), []
    for count in counts:
        parts.append(items[:count])
        items = items[count:]
    return [*parts, items]
