"""Which calls of JAX's collectives in the user's source a trace of a mapped body makes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np

from pmapx._src.codemod.to_jit.decisions import COLLECTIVES
from pmapx._src.watch import frames
from pmapx._src.watch.frames import Span


@dataclasses.dataclass(frozen=True)
class CollectiveCall:
    """A call of a collective over the mapped axis, in the user's source or in a library's.

    Attributes:
      name: of the function.
      span: of the call; of the user's call that led to it where a library makes it.
      library: the library's file, or empty.
      is_tree: whether its operand is a tree of arrays, not one array.
      constant: its operand, where that is a number while tracing; such a call is in no jaxpr.
      axis_size: the number of devices of the trace.
    """

    name: str
    span: Span
    library: str
    is_tree: bool
    constant: float | None
    axis_size: int


@dataclasses.dataclass
class Watch:
    """What a trace reaches: calls of collectives, and functions by file and first line."""

    axis_name: Hashable
    root: str
    calls: set[CollectiveCall] = dataclasses.field(default_factory=set)
    reached: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def is_own(self, file: str) -> bool:
        """Whether a file is one of the program's."""
        if file.startswith("<") or "-packages" + os.sep in file:
            return False
        return os.path.realpath(file).startswith(self.root)

    def note(self, name: str, args: Any, kwargs: Any) -> None:
        position = COLLECTIVES[name]
        axis = args[position] if len(args) > position else kwargs.get("axis_name")
        if axis != self.axis_name and axis != (self.axis_name,):
            return
        callers = list(frames.callers())
        own = next((frame for frame in callers if self.is_own(frame.f_code.co_filename)), None)
        if own is None:
            return
        library = "" if own is callers[0] else callers[0].f_code.co_filename
        leaves = jax.tree.leaves(args[0]) if position and args else []
        is_tree = len(leaves) != 1 or leaves[0] is not args[0]
        constant = None
        if leaves and not is_tree and not hasattr(leaves[0], "aval") and np.ndim(leaves[0]) == 0:
            constant = float(leaves[0])
        size = int(jax.lax.psum(1, self.axis_name))
        call = CollectiveCall(name, frames.span(own), library, is_tree, constant, size)
        self.calls.add(call)


_local = threading.local()


@contextlib.contextmanager
def watching(axis_name: Hashable, root: str) -> Iterator[Watch]:
    """Notes what a trace calls while the context is open."""
    watch = Watch(axis_name, root)
    before, profile = getattr(_local, "watch", None), sys.getprofile()
    seen: set[types.CodeType] = set()

    def note_function(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            if watch.is_own(code.co_filename):
                watch.reached.add((os.path.realpath(code.co_filename), code.co_firstlineno))

    _local.watch = watch
    sys.setprofile(note_function)
    try:
        yield watch
    finally:
        sys.setprofile(profile)
        _local.watch = before


def install() -> None:
    """Replaces JAX's collectives by ones that note their calls."""
    for name in COLLECTIVES:
        original = getattr(jax.lax, name, None)
        if original is not None:
            setattr(jax.lax, name, _noting(name, original))


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        watch = getattr(_local, "watch", None)
        if watch is not None:
            # The size of the axis is asked for by the same function.
            _local.watch = None
            try:
                watch.note(name, args, kwargs)
            finally:
                _local.watch = watch
        return original(*args, **kwargs)

    return collective
