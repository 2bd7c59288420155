"""Inputs and outputs of calls, kept on disk: one file for each call and process."""

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

Data = Any
"""A leaf on the host: an array, for an array of several processes a dict of its local shards by
index, or an object that is no array."""


@dataclasses.dataclass
class Sample:
    """Inputs, and what the map returns for them.

    Attributes:
      is_drawn: whether the inputs are random, not those of the program.
      inputs: the leaves of the arguments.
      outputs: the leaves of the result.
      noise: for each, the largest difference that rounding errors in the inputs make.
    """

    is_drawn: bool
    inputs: list[Data]
    outputs: list[Data]
    noise: list[float]


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


def parts(data: Data) -> list[np.ndarray[Any, Any]]:
    """Returns the arrays of a leaf."""
    return list(data.values()) if isinstance(data, dict) else [np.asarray(data)]


def changed(data: Data, change: Callable[[np.ndarray[Any, Any]], Any]) -> Data:
    """Returns a leaf with each of its arrays changed."""
    if isinstance(data, dict):
        return {key: change(part) for key, part in data.items()}
    new = change(np.asarray(data))
    return type(data)(new) if isinstance(data, int | float | bool) else new
