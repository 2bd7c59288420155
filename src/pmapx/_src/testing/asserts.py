"""Assertions about functions and arrays on several devices, for any test framework."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import monitoring

from pmapx._src.audit import donation, examine
from pmapx._src.audit.report.audit_report import AuditedFunction
from pmapx._src.testing import watched_calls
from pmapx._src.trees import names
from pmapx._src.trees.checked_leaves import is_key

_EVENT = "/jax/core/compile/backend_compile_duration"


def assert_replicated(tree: Any) -> None:
    """Asserts that every device holds the same values of each array.

    An array may be replicated, or have a leading device axis, as outputs of pmap do; then its
    shards are compared.

    Examples:
      >>> import numpy as np, pmapx
      >>> assert_replicated(pmapx.replicate({"w": np.arange(3.0)}))

    Args:
      tree: arrays on all devices of this process.

    Raises:
      AssertionError: if devices hold different values, with the array and the first device.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path) or "the array"
        if not isinstance(leaf, jax.Array):
            raise AssertionError(f"{name} is a {type(leaf).__name__}, not an array on devices")
        data = jax.random.key_data(leaf) if is_key(leaf) else leaf
        shards = data.addressable_shards
        if len(shards) < jax.local_device_count():
            where = ", ".join(str(shard.device) for shard in shards)
            raise AssertionError(f"{name} is on {where} only")
        first = np.asarray(shards[0].data)
        for shard in shards[1:]:
            other = np.asarray(shard.data)
            # By their bytes: a NaN is equal to itself.
            if first.shape != other.shape or first.tobytes() != other.tobytes():
                raise AssertionError(
                    f"{name} {leaf.dtype}{list(leaf.shape)} differs between {shards[0].device} and "
                    f"{shard.device}{_by_how_much(first, other)}; its sharding is {leaf.sharding}"
                )


def _by_how_much(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> str:
    if a.shape != b.shape or not np.issubdtype(a.dtype, np.number):
        return ""
    return f" by up to {np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))):.3g}"


def assert_compiles_once(f: Callable[..., Any], *args: Any, calls: int = 3, **kwargs: Any) -> None:
    """Asserts that a function is compiled for its first call, and not again in a training loop.

    It is called several times. What it returns for the next call, such as the state of a training
    step, is passed to the next call; other arguments stay the same.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> assert_compiles_once(jax.jit(lambda step: step + 1), jnp.int32(0))

    Args:
      f: a function of ``jax.jit`` or ``pmapx.pmap``, or any function that calls some.
      *args: its arguments; they may be donated.
      calls: how often it is called.
      **kwargs: its keyword arguments.

    Raises:
      AssertionError: if a later call compiles, with the argument whose type or placement changed.
    """
    arguments = (args, kwargs)
    before: list[tuple[str, str]] = []
    for number in range(1, calls + 1):
        described = _described(f, arguments)
        given = _copied(arguments)
        with counted_compiles() as count:
            result = jax.block_until_ready(f(*given[0], **given[1]))
        if number > 1 and count.programs:
            changed = [
                f"{path} was {old}, is {new}"
                for (path, old), (_, new) in itertools.zip_longest(
                    before, described, fillvalue=("", "nothing")
                )
                if old != new
            ]
            why = (
                "; ".join(changed)
                or "no argument changed; does it create a new function each time?"
            )
            raise AssertionError(
                f"{names.function_name(f)} is compiled again at call {number}: {why}"
            )
        before, arguments = described, _next(arguments, result)


class Count:
    """The programs that were compiled in a block."""

    def __init__(self) -> None:
        self.programs = 0


_open: list[Count] = []
_lock = threading.Lock()


@functools.cache
def _listen() -> None:
    """Counts for all blocks; JAX 0.8 has no public way to remove a listener."""

    def note(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == _EVENT:
            with _lock:
                for count in _open:
                    count.programs += 1

    monitoring.register_event_duration_secs_listener(note)


@contextlib.contextmanager
def counted_compiles() -> Iterator[Count]:
    """Counts the programs that are compiled in a block.

    >>> import jax
    >>> with counted_compiles() as count:
    ...     _ = jax.jit(lambda x: x * 3 - 1)(2.0)
    >>> count.programs
    1
    """
    _listen()
    count = Count()
    _open.append(count)
    try:
        yield count
    finally:
        _open.remove(count)


def _described(f: Callable[..., Any], arguments: Any) -> list[tuple[str, str]]:
    """Describes each leaf by what a program is compiled for."""
    args, _ = arguments
    paths = names.leaf_paths(arguments, range(len(args)), names.parameter_names(f))
    return [
        (path, _kind(leaf)) for path, leaf in zip(paths, jax.tree.leaves(arguments), strict=True)
    ]


def _kind(leaf: Any) -> str:
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        return repr(leaf)
    weak = ", weak type" if getattr(aval, "weak_type", False) else ""
    where = f" as {leaf.sharding}" if isinstance(leaf, jax.Array) else " from the host"
    return f"{aval.str_short()}{weak}{where}"


def _copied(tree: Any) -> Any:
    """Copies arrays, so that donation leaves the originals."""
    copied = jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, tree)
    return jax.block_until_ready(copied)


def _next(arguments: Any, result: Any) -> Any:
    """Returns the arguments of the next call: the results take the place of what they update."""
    leaves, tree = jax.tree.flatten(arguments)
    results = jax.tree.leaves(result)
    try:
        pairs = donation.carried(arguments, result)
    except AttributeError:  # Not all results are arrays.
        return arguments
    for argument, output in pairs:
        leaves[argument] = results[output]
    return jax.tree.unflatten(tree, leaves)


def assert_no_gather(f: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    """Asserts that a compiled function has no all-gather, written or added by XLA.

    Without a function it is a context manager for the calls in a block. Functions that ``jax.jit``
    made before are seen under ``pytest --pmapx``; otherwise, pass them.

    Examples:
      >>> import jax, numpy as np, pmapx
      >>> x = np.ones((jax.device_count(), 2))
      >>> assert_no_gather(pmapx.pmap(lambda x: jax.lax.psum(x, "i"), "i"), x)

    Args:
      f: a function of ``jax.jit``, ``jax.shard_map`` or ``pmapx.pmap``; it is not run.
      *args: its arguments, or ``jax.ShapeDtypeStruct`` in their place.
      **kwargs: its keyword arguments.

    Raises:
      AssertionError: if there is one, with its bytes and the line that causes it.
    """
    if f is None:
        return _no_gather_in_block()
    _check_gathers(examine.report_on(f, args, kwargs, None).functions)
    return None


@contextlib.contextmanager
def _no_gather_in_block() -> Iterator[None]:
    listener = watched_calls.listener()
    with listener.watching() as watched:
        yield
    if not watched.functions:
        raise AssertionError(
            "no mapped function was seen in the block; use pytest --pmapx, or pass the function: "
            "assert_no_gather(f, *args)"
        )
    _check_gathers(watched.functions)


def _check_gathers(functions: tuple[AuditedFunction, ...]) -> None:
    lines = [
        f"{function.name}: {each}{'' if each.is_written else ', added by XLA'}"
        for function in functions
        for each in function.exchanges
        if each.kind == "all-gather"
    ]
    if lines:
        raise AssertionError("\n".join(["an array is gathered:", *(f"  {line}" for line in lines)]))
