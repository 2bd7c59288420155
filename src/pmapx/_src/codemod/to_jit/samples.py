"""Inputs and outputs of calls, kept on disk, and random inputs like them."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.trees.checked_leaves import is_key

Array = np.ndarray[Any, Any]
Data = Any
"""A leaf on the host: an array, for an array of several processes a dict of its local shards by
index, or an object that is not an array."""


@dataclasses.dataclass
class Sample:
    """Inputs, and what the map returns for them.

    Attributes:
      is_drawn: whether the inputs are random, not those of the program.
      inputs: the leaves of the arguments.
      outputs: the leaves of the result.
      noise: for each, the largest difference that rounding errors in the inputs make.
      is_replicated: for each, whether it is replicated.
    """

    is_drawn: bool
    inputs: list[Data]
    outputs: list[Data]
    noise: list[float]
    is_replicated: list[bool] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class CallSamples:
    """The samples of a call; ``epsilon`` and ``length`` are those of `agreement.limit`."""

    samples: list[Sample]
    epsilon: float
    length: int


def path_of(folder: Path, site: str, call: int) -> Path:
    return folder / f"samples-{site}-{call}-{jax.process_index()}"


def save(path: Path, samples: CallSamples) -> int:
    """Writes samples; returns the size."""
    beside = path.with_suffix(".new")
    with open(beside, "wb") as file:
        pickle.dump(samples, file)
    beside.replace(path)
    return path.stat().st_size


def load(path: Path) -> CallSamples | None:
    if not path.exists():
        return None
    with open(path, "rb") as file:
        found: CallSamples = pickle.load(file)
    return found


def dynamic(args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int]) -> tuple[Any, Any]:
    """Returns the arguments that are not static, of a call of a jitted function."""
    fixed = {position % max(len(args), 1) for position in static}
    return [arg for at, arg in enumerate(args) if at not in fixed], kwargs


def on_host(leaf: Any) -> Data:
    """Returns a copy of a leaf on the host."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.array(leaf.addressable_data(0) if leaf.is_fully_replicated else leaf)
        return {_key(s.index, leaf.shape): np.array(s.data) for s in leaf.addressable_shards}
    return np.array(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def placed(data: Data, like: Any) -> Any:
    """Returns a leaf of some data, of the type and with the placement of another."""
    if is_key(like):
        rebuilt = placed(data, jax.random.key_data(like) if not _is_gone(like) else None)
        return jax.random.wrap_key_data(rebuilt, impl=jax.random.key_impl(like))
    if not isinstance(like, jax.Array):
        return data
    if like.is_fully_addressable and not like.committed:
        return jnp.array(data)
    get: Callable[[Any], Any] = lambda index: (
        data[_key(index, like.shape)] if isinstance(data, dict) else np.asarray(data)[index]
    )
    return jax.make_array_from_callback(like.shape, like.sharding, get)


def _is_gone(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _key(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def parts(data: Data) -> list[Array]:
    """Returns the arrays of a leaf."""
    return list(data.values()) if isinstance(data, dict) else [np.asarray(data)]


def changed(data: Data, change: Callable[[Array], Any]) -> Data:
    """Returns a leaf with each of its arrays changed."""
    if isinstance(data, dict):
        return {key: change(part) for key, part in data.items()}
    new = change(np.asarray(data))
    return type(data)(new) if isinstance(data, int | float | bool) else new


def drawn(data: Data, is_sharded: bool, generator: np.random.Generator) -> Data:
    """Returns a random leaf in the range of a given one.

    Batches are drawn anew; what is replicated is disturbed, as weights after some steps are.
    """
    if not isinstance(data, dict | np.ndarray | int | float | bool):
        return data
    return changed(data, lambda x: _drawn(x, is_sharded, generator))


def _drawn(x: Array, is_sharded: bool, generator: np.random.Generator) -> Array:
    if not x.size:
        return x
    if _is_float(x):
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        size = float(np.std(wide)) or float(np.max(np.abs(wide))) or 1.0
        if not np.isfinite(size):
            return x
        noise = generator.standard_normal(x.shape) * size
        new = (np.mean(wide) if is_sharded else wide) + noise * (1.0 if is_sharded else 0.1)
        # Second moments and weights of examples stay positive.
        is_positive = x.dtype.kind != "c" and bool((wide >= 0).all())
        new = np.abs(new) if is_positive else new
        return np.asarray(new.astype(x.dtype))
    if not is_sharded:
        return x
    if x.dtype.kind == "b":
        return np.asarray(generator.random(x.shape) < 0.5)
    if x.dtype.kind in "iu":
        low, high = int(x.min()), int(x.max())
        return np.asarray(generator.integers(low, high, x.shape, x.dtype, endpoint=True))
    return x


def rounded(data: Data, epsilon: float, generator: np.random.Generator) -> Data:
    """Returns a leaf with relative errors of the size of rounding errors."""
    if not isinstance(data, dict | np.ndarray | float):
        return data

    def change(x: Array) -> Array:
        if not _is_float(x):
            return x
        error = 1 + generator.choice([-1.0, 1.0], x.shape) * max(epsilon, _epsilon(x))
        return np.asarray((x * error).astype(x.dtype))

    return changed(data, change)


def with_static(args: Any, given: tuple[Any, Any], static: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a call with the dynamic ones replaced."""
    fixed = {position % max(len(args), 1) for position in static}
    others = iter(given[0])
    return [arg if at in fixed else next(others) for at, arg in enumerate(args)], given[1]


def distance(one: Any, other: Any) -> float:
    """Returns the largest difference of two leaves."""
    largest = 0.0
    for a, b in zip(parts(one), parts(other), strict=True):
        if a.dtype.kind in "fc" or "float" in a.dtype.name:
            kind = np.complex128 if a.dtype.kind == "c" else np.float64
            gap = np.abs(a.astype(kind) - b.astype(kind))
            finite = gap[np.isfinite(gap)]
            largest = max(largest, float(finite.max()) if finite.size else 0.0)
    return largest


def several(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def _is_float(x: Array) -> bool:
    return x.dtype.kind in "fc" or "float" in x.dtype.name


def _epsilon(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)
