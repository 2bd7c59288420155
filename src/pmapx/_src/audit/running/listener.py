"""The listener in a program that is audited while it runs.

Each mapped function is examined at the first call of each signature; calls, transferred inputs and
the indexing of sharded arrays are counted to the end. What is known is written as it is found, so
that a program that crashes leaves a report. Nothing here may stop the program.
"""

import dataclasses
import functools
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapx._src import fastpath
from pmapx._src.audit import examine
from pmapx._src.audit import subject as subjects
from pmapx._src.audit.report.audit_report import AuditReport, ShardRead
from pmapx._src.audit.running import merge_reports
from pmapx._src.audit.running.audited_calls import AuditedCalls
from pmapx._src.audit.running.request import Request, progress
from pmapx._src.audit.subject import Subject
from pmapx._src.audit.topology import retrace_jit
from pmapx._src.audit.topology.compile_for import scaling
from pmapx._src.trees import checked_leaves
from pmapx._src.watch import frames, record_files
from pmapx._src.watch.transforms import Call, Listener, MadeFunction, attach

SECONDS_BETWEEN_WRITES = 2.0


def start(records: Path) -> None:
    """Audits this process from now on."""
    attach(AuditListener(records, Request.from_environment()))


class AuditListener(Listener):
    """What was found so far, and where it is written."""

    transforms = ("jit",)
    has_indexing = True

    def __init__(self, records: Path, request: Request) -> None:
        self._records = records
        self._request = request
        self._functions: list[AuditedCalls] = []
        self._indexing: dict[tuple[str, str], ShardRead] = {}
        self._lock = threading.RLock()
        self._written_at = 0.0
        self._here = threading.local()
        self._has_mapped = False

    def made(self, function: MadeFunction) -> bool:
        if function.kind == "pmap":
            programs, statistics = function.made._pmapx, function.made._mapped.statistics
            static_argnums = programs.options.static_argnums
            line = frames.line()
            function.state = AuditedCalls(programs.function, statistics, line, static_argnums)
        else:
            name = getattr(function.made, "__name__", "a function")
            function.state = AuditedCalls(name, None, frames.line())
        self._note(function.state)
        return True

    def _note(self, function: AuditedCalls) -> None:
        function.is_placed_here = self._request.topology is None
        function.with_fsdp = self._request.what_if is not None
        self._functions.append(function)

    def call(self, call: Call) -> Any:
        """Counts a call; the first of a signature is examined before it runs."""
        if not (getattr(self._here, "is_busy", False) or fastpath.is_staging()):
            function: AuditedCalls = call.function.state
            self._here.is_busy = True
            try:
                with self._lock:
                    is_new = function.note_call(
                        call.args, call.kwargs, functools.partial(self._subject, call.function)
                    )
                    if is_new or time.monotonic() - self._written_at > SECONDS_BETWEEN_WRITES:
                        self.end()
            except Exception as error:  # If the call is at fault, the program will raise it itself.
                function.skip(error)
            finally:
                self._here.is_busy = False
        return call.run()

    def index(self, x: Any, index: Any) -> None:
        """Counts ``x[i]`` of arrays whose first dimension is sharded."""
        if not isinstance(index, int | np.integer | slice):
            return
        shape, sharding = x.shape, x.sharding
        if not shape or sharding.num_devices == 1 or x.is_deleted():
            return
        if isinstance(index, slice):
            start, stop, _ = index.indices(shape[0])
            if stop - start != 1 or shape[0] == 1:
                return
        try:
            is_sharded = sharding.shard_shape(shape)[0] != shape[0]
        except ValueError:
            return
        if is_sharded:
            where, shown = frames.line(), _shown(index)
            size = x.nbytes // shape[0] * (sharding.num_devices - 1)
            kind = str(checked_leaves.abstract(x))
            with self._lock:
                read = self._indexing.get((where, shown)) or ShardRead(where, shown, 0, 0, kind)
                self._indexing[where, shown] = ShardRead(
                    where, shown, read.count + 1, read.bytes + size, read.type
                )

    def end(self) -> None:
        """Writes what is known."""
        with self._lock:
            self._written_at = time.monotonic()
            record_files.write(self._records, "audit", self.report().to_dict())

    def report(self) -> AuditReport:
        audited = merge_reports.once_each(
            [each for function in self._functions for each in function.audited()],
            "the same function was mapped again",
        )
        return examine.assemble(
            merge_reports.mapped_ones(audited),
            list(self._indexing.values()),
            self._request.topology,
            [line for function in self._functions for line in function.skipped],
            [line for function in self._functions for line in function.assumptions()],
        )

    def _subject(self, function: MadeFunction, args: Any, kwargs: Any) -> Subject | None:
        """Compiles a call's program, for all topologies if it is the function's first."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return None
        f, known, request = function.made, function.state, self._request
        traced = None if function.kind == "pmap" else f.trace(*args, **kwargs)
        is_mapped = traced is None or retrace_jit.has_mesh(f, traced, args, kwargs)
        if not is_mapped and (request.topology is not None or self._has_mapped):
            return None
        self._has_mapped |= is_mapped
        if request.topology is not None:
            progress(f"compiling {known.name} for {request.topology}")
            subject = subjects.of_topology(
                f, args, request.topology, kwargs=kwargs, scale=request.scale
            )
        elif traced is not None:
            subject = subjects.of_traced(f, traced, args, kwargs)
        else:
            subject = self._pmapped(f, args, kwargs)
        if not request.scaling or known.is_known or not is_mapped:
            return subject
        try:
            found = scaling(
                f, args, request.scaling, kwargs=kwargs, scale=request.scale,
                progress=lambda line: progress(f"{line}: {known.name}"),
            )  # fmt: skip
        except Exception as error:  # The audit on the program's own devices is not lost.
            known.skip(error, "on more devices: ")
            return subject
        return dataclasses.replace(subject, scaling=found)

    def _pmapped(self, f: Any, args: Any, kwargs: Any) -> Subject:
        mapped, programs = f._mapped, f._pmapx
        if programs.is_multi_process():
            return subjects.of_pmapped(f, args, kwargs)
        call = mapped._reader.read(args, kwargs)
        executable = mapped.find_executable(call)
        return subjects.of_executable(programs, call, executable, executable.program.trace())


def _shown(index: Any) -> str:
    if isinstance(index, slice):
        return f"{index.start if index.start is not None else ''}:{index.stop}"
    return str(int(index))
