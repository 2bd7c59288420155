"""Inside a program that is audited while it runs: a hook for ``pmapx._src.watch``.

Each mapped function is examined when a signature of it is first called; calls, moved inputs and
rows taken are counted to the end. What is known is written to the folder for records as it is
found, so that a program that crashes leaves what was met. Nothing here may stop the program.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pmapx
from pmapx._src import fastpath
from pmapx._src.audit import examine
from pmapx._src.audit import subject as subjects
from pmapx._src.audit.report import merge_processes
from pmapx._src.audit.report.data import RowRead
from pmapx._src.audit.running.audited_calls import Make, WatchedFunction
from pmapx._src.audit.subject import Subject
from pmapx._src.audit.topology.scaling import scaling
from pmapx._src.audit.topology.target import several
from pmapx._src.map.pmap import PmapImpl
from pmapx._src.replication import whole_program

TOPOLOGY, SCALING = "PMAPX_AUDIT_TOPOLOGY", "PMAPX_AUDIT_SCALING"
SECONDS_BETWEEN_WRITES = 2.0


def start(records: Path) -> None:
    """Watches this process from now on; called by ``pmapx._src.watch`` once JAX is imported."""
    watch = Watch(records, os.environ.get(TOPOLOGY) or None, several(os.environ.get(SCALING, "")))
    watch.pmaps()
    watch.jits()
    watch.rows()
    atexit.register(watch.write)


class Watch:
    """What was met so far, and where it is written."""

    def __init__(self, records: Path, topology: str | None, scaling: Sequence[str] = ()) -> None:
        """Starts with nothing."""
        self._records = records
        self._topology = topology
        self._scaling = scaling
        self._functions: list[WatchedFunction] = []
        self._rows: dict[tuple[str, str], RowRead] = {}
        self._lock = threading.RLock()
        self._written_at = 0.0
        self._here = threading.local()

    def write(self) -> None:
        """Writes what is known, whole or not at all."""
        with self._lock:
            audited = merge_processes.once_each(
                [each for function in self._functions for each in function.audited()],
                "the same function was mapped anew",
            )
            skipped = [line for function in self._functions for line in function.skipped]
            rows = list(self._rows.values())
            assumed = [line for function in self._functions for line in function.assumptions()]
            report = examine.assemble(audited, rows, self._topology, skipped, assumed)
            self._written_at = time.monotonic()
            report.to_json(self._records / f"audit-{os.getpid()}.json")

    def pmaps(self) -> None:
        """Watches what ``pmapx.pmap`` makes, under whatever name it is called."""
        make = PmapImpl.as_function

        def as_function(mapped: PmapImpl) -> Callable[..., Any]:
            dispatcher = mapped._dispatcher
            call = dispatcher.call
            name = mapped._builder.function
            watched = WatchedFunction(
                name, mapped._statistics, _line_of_the_program(), mapped._options.static_argnums
            )
            self._functions.append(watched)
            of_call = functools.partial(self._of_pmap, watched, mapped)

            def watched_call(*args: Any, **kwargs: Any) -> Any:
                self._before(watched, args, kwargs, of_call)
                return call(*args, **kwargs)

            dispatcher.call = watched_call
            try:
                return make(mapped)
            finally:
                dispatcher.call = call

        PmapImpl.as_function = as_function  # type: ignore[method-assign, assignment]

    def jits(self) -> None:
        """Watches what ``jax.jit`` makes from now on, the programs of pmapx itself left out."""
        make = jax.jit

        @functools.wraps(make)
        def jit(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] in ("jax", "pmapx"):
                return made
            if hasattr(made, "lower"):
                return self._watched_jit(made)
            return lambda fun: self._watched_jit(made(fun))  # It was given options alone.

        jax.jit = jit

    def rows(self) -> None:
        """Watches ``x[i]`` of arrays that lie on several devices."""
        array = fastpath.array_type()
        getitem = array.__getitem__

        def watched_getitem(x: Any, index: Any) -> Any:
            if isinstance(index, int | np.integer | slice):
                self._note_row(x, index)
            return getitem(x, index)

        array.__getitem__ = watched_getitem

    def _before(self, watched: WatchedFunction, args: Any, kwargs: Any, make: Make) -> None:
        """Notes a call that is about to run; the first of a signature is examined."""
        if getattr(self._here, "is_busy", False) or fastpath.is_staging():
            return
        self._here.is_busy = True
        try:
            with self._lock:
                is_new = watched.note_call(args, kwargs, make)
                if is_new or time.monotonic() - self._written_at > SECONDS_BETWEEN_WRITES:
                    self.write()
        except Exception as error:  # If the call is at fault, the program will say so itself.
            watched.skip(error)
        finally:
            self._here.is_busy = False

    def _of_pmap(
        self, watched: WatchedFunction, mapped: PmapImpl, args: Any, kwargs: Any
    ) -> Subject | None:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return None
        programs = mapped._builder
        f = programs.user_function()
        if self._topology is not None:
            subject = subjects.of_topology(f, args, kwargs, self._topology)
        elif programs.is_multi_process():
            subject = subjects.of_pmapped(f, args, kwargs)
        else:
            call = mapped._reader.read(args, kwargs)
            executable = mapped.find_executable(call)
            subject = subjects.of_executable(programs, call, executable, executable.program.trace())
        return self._scaled(watched, subject, f, args, kwargs)

    def _scaled(
        self, watched: WatchedFunction, subject: Subject, f: Any, args: Any, kwargs: Any
    ) -> Subject:
        """Compiles the first signature of a function for all that its table asks for."""
        if not self._scaling or watched.is_known:
            return subject

        def progress(line: str) -> None:
            print(f"pmapx audit: {line}: {watched.name}", file=sys.stderr, flush=True)

        try:
            found = scaling(f, args, topologies=self._scaling, kwargs=kwargs, progress=progress)
        except Exception as error:  # What is known of it here is not lost by that.
            watched.skip(error, "on more devices: ")
            return subject
        return dataclasses.replace(subject, scaling=found)

    def _watched_jit(self, jitted: Any) -> WatchedJit:
        name = getattr(jitted, "__name__", "a function")
        watched = WatchedFunction(name, None, _line_of_the_program())
        self._functions.append(watched)

        def of_call(args: Any, kwargs: Any) -> Subject | None:
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                return None
            traced = jitted.trace(*args, **kwargs)
            if not any(True for _ in whole_program.shard_maps(traced.jaxpr.jaxpr)):
                return None
            if self._topology is not None:
                subject = subjects.of_topology(jitted, args, kwargs, self._topology)
            else:
                subject = subjects.of_traced(jitted, traced, args, kwargs)
            return self._scaled(watched, subject, jitted, args, kwargs)

        return WatchedJit(jitted, lambda args, kw: self._before(watched, args, kw, of_call))

    def _note_row(self, x: Any, index: Any) -> None:
        shape, sharding = x.shape, x.sharding
        if not shape or sharding.num_devices == 1 or x.is_deleted():
            return
        if isinstance(index, slice):
            start, stop, _ = index.indices(shape[0])
            if stop - start != 1 or shape[0] == 1:
                return
        try:
            is_split = sharding.shard_shape(shape)[0] != shape[0]
        except ValueError:
            return
        if is_split:
            where, shown = _line_of_the_program(), _shown(index)
            size = x.nbytes // shape[0] * (sharding.num_devices - 1)
            kind = f"{x.dtype}[{','.join(map(str, shape))}]"
            with self._lock:
                read = self._rows.get((where, shown)) or RowRead(where, shown, 0, 0, kind)
                self._rows[where, shown] = RowRead(
                    where, shown, read.count + 1, read.bytes + size, read.type
                )


class WatchedJit:
    """What ``jax.jit`` returned, its calls told before they run; in all else it is that."""

    def __init__(self, jitted: Any, before: Callable[[Any, Any], None]) -> None:
        """Stands in the place of ``jitted``."""
        functools.update_wrapper(self, jitted)
        self._jitted = jitted
        self._before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tells of the call, and makes it."""
        self._before(args, kwargs)
        return self._jitted(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a function does, for methods."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Gives the stages, and all else."""
        return getattr(self._jitted, name)


def _line_of_the_program() -> str:
    """Returns the line outside of JAX and pmapx that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}"


def _shown(index: Any) -> str:
    if isinstance(index, slice):
        return f"{index.start if index.start is not None else ''}:{index.stop}"
    return str(int(index))


_OURS = (
    os.path.dirname(os.path.abspath(pmapx.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    "<",
)
