"""The listener of a proof: what each pmap's outputs vary with, and how its arguments came in.

It runs after the legacy mode is installed, and looks at the first calls of each pmapped function.
The replication analysis shows, output by output, which arguments it varies with and whether it
varies by itself; the shards of each argument are compared.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapx._src import fastpath
from pmapx._src.mesh import trace_context
from pmapx._src.replication import shard_map_body, source_locations, traced_program
from pmapx._src.watch import frames, record_files
from pmapx._src.watch.frames import Span
from pmapx._src.watch.transforms import Call, Listener, MadeFunction, attach

# Calls whose arguments are compared: the first ones, the second of which takes the first's results.
LOOKS = 3
# Wrappers around a pmap, one in the other, whose users are distinguished.
DEEPEST = 6


def start(records: Path) -> None:
    """Watches every pmapped function from now on."""
    attach(ProofListener(records))


class ProofListener(Listener):
    """All that was seen in this process, written to a file whenever it grows."""

    has_indexing = True

    def __init__(self, records: Path) -> None:
        self._records = records
        self._sites: list[_Site] = []
        self._indexed: set[Span] = set()
        self._lock = threading.RLock()

    def made(self, function: MadeFunction) -> bool:
        """Notes where the pmap is, and through which calls it was reached."""
        spans = list(map(frames.span, itertools.islice(frames.callers(), DEEPEST)))
        function.state = _Site(spans, function.made)
        with self._lock:
            self._sites.append(function.state)
        return True

    def call(self, call: Call) -> Any:
        """Examines a call before it runs."""
        if call.function.state.look(call.args, call.kwargs):
            self.end()
        return call.run()

    def index(self, x: Any, index: Any) -> None:
        """Notes where a shard of a stacked array is taken."""
        if type(index) is int and x.ndim and not x.sharding.is_fully_replicated:
            self._indexed.update(map(frames.span, itertools.islice(frames.callers(), 1)))

    def end(self) -> None:
        """Writes what is known."""
        with self._lock:
            sites = [site.record for site in self._sites]
            found = {"sites": sites, "indexed": sorted(self._indexed)}
            record_files.write(self._records, "replicated", found)


class _Site:
    """What is known of one pmapped function."""

    def __init__(self, spans: list[Span], mapped: Any) -> None:
        self._mapped = mapped
        self._looks = 0
        self._signatures: set[Any] = set()
        self.record: dict[str, Any] = {
            "span": spans[0],
            "through": spans[1:],
            "function": getattr(mapped, "__name__", ""),
            "calls": 0,
            "problem": "",
            "names": {},
            "unequal": {},
            "arity": "unknown",
            "tuples": [],
            "arrays": {},
            "varies": {},
            "with": {},
        }

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Examines a call; returns whether it shows anything new."""
        self.record["calls"] += 1
        try:
            mapping = self._mapped._mapped
            call = mapping._reader.read(args, kwargs)
            if fastpath.is_staging():
                self.record["problem"] = "it is called inside another transformation"
                return True
            # All that a program depends on: static values, and the settings around the call.
            key = (call.signature, trace_context.trace_context())
            is_new = key not in self._signatures
            if not is_new and self._looks >= LOOKS:
                return False
            self._signatures.add(key)
            self._looks += 1
            program, traced = mapping.traced(*args, **kwargs)
            self._compare(mapping, call, program)
            if is_new:
                self._analyze(program, traced, _owners(call))
        except Exception as error:  # The program goes on as it would without us.
            self.record["problem"] = f"not analysed: {type(error).__name__}: {error}"[:200]
        return True

    def _compare(self, mapping: Any, call: Any, program: Any) -> None:
        owners = _owners(call)
        parameters = mapping._reader.parameters
        names = {}
        for index in owners:
            position = int(index) if index.isdigit() else -1
            names[index] = parameters[position] if 0 <= position < len(parameters) else index
        self.record["names"].update(names)
        level = program.mapping.outermost
        for index, leaves in owners.items():
            for leaf in leaves:
                axis = level.in_axes[leaf]
                if axis is not None and not _is_equal(call.leaves[leaf], axis):
                    where = program.mapping.names[leaf]
                    self.record["unequal"].setdefault(
                        index, f"call {self.record['calls']}: {where}"
                    )

    def _analyze(self, program: Any, traced: Any, owners: dict[str, list[int]]) -> None:
        levels = program.mapping.levels
        if len(levels) != 1:
            raise ValueError("it is nested")
        (level,) = levels
        size = len(program.mapping.leaves)
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(traced.out_info)[0]]
        is_tuple = type(traced.out_info) is tuple
        arity = len(traced.out_info) if is_tuple else None
        if self.record["arity"] not in ("unknown", arity):
            raise ValueError("its results have different shapes in different calls")
        self.record["arity"] = arity
        results = enumerate(traced.out_info) if is_tuple else (("single", traced.out_info),)
        tuples = [str(name) for name, each in results if isinstance(each, (tuple, list))]
        self.record["tuples"] = tuples
        for path in paths:
            result, inner = (str(path[0].idx), path[1:]) if is_tuple else ("single", path)
            name = getattr(inner[0], "key", getattr(inner[0], "name", None)) if inner else None
            if len(inner) == 1 and isinstance(name, str):
                self.record["arrays"].setdefault(result, []).append(name)

        def ask(varying: set[int]) -> list[shard_map_body.Variation]:
            axes_of = [(level.mesh_axis,) if leaf in varying else () for leaf in range(size)]
            found = shard_map_body.shard_map_outputs(traced.jaxpr, axes_of)
            if found is None:
                raise ValueError("its program is not one shard_map")
            return found

        def note(found: list[shard_map_body.Variation], into: dict[str, Any], word: str) -> None:
            for output, variation in enumerate(found):
                if level.mesh_axis not in variation.axes:
                    continue
                element = str(paths[output][0].idx) if is_tuple else "single"
                rest = jax.tree_util.keystr(paths[output][1:] if is_tuple else paths[output])
                since = word or f"since {variation.since}"
                made = f", made at {lines[output]}" if output < len(lines) and lines[output] else ""
                into.setdefault(element, f"{rest + ' ' if rest else ''}differs {since}{made}")

        by_themselves = ask(set())
        shard_map = next(traced_program.shard_maps(traced.jaxpr.jaxpr))
        lines = source_locations.lines_behind(shard_map.params["jaxpr"])
        note(by_themselves, self.record["varies"], "")
        for index, leaves in owners.items():
            if any(level.in_axes[leaf] is not None for leaf in leaves):
                into = self.record["with"].setdefault(index, {})
                note(ask(set(leaves)), into, f"as {self.record['names'][index]!r} does")


def _owners(call: Any) -> dict[str, list[int]]:
    """Returns which leaves each argument has: a position of the call, or a keyword."""
    owners: dict[str, list[int]] = {}
    counts = [len(jax.tree.leaves(arg)) for arg in call.args]
    start = 0
    for position, count in zip(call.signature.positions, counts, strict=True):
        owners[str(position)] = list(range(start, start + count))
        start += count
    for name in sorted(call.kwargs):
        count = len(jax.tree.leaves(call.kwargs[name]))
        owners[name] = list(range(start, start + count))
        start += count
    return owners


def _is_equal(leaf: Any, axis: int) -> bool:
    """Returns whether the shards of an array are equal to the bit."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    shards = np.moveaxis(np.asarray(leaf), axis, 0)
    first = np.ascontiguousarray(shards[0]).tobytes()
    return all(np.ascontiguousarray(shard).tobytes() == first for shard in shards[1:])
