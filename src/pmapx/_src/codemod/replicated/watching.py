"""A hook in the user's command: what each pmap's outputs vary with, and how its arguments came in.

It runs after the legacy mode is installed. Each function that ``jax.pmap`` returns is asked at its
first calls: the replication analysis finds, output by output, which arguments it differs with and
whether it differs by itself; the shards of each argument are compared.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util

from pmapx._src import fastpath
from pmapx._src.mesh import trace_context
from pmapx._src.replication import shard_map_body
from pmapx._src.spmd import axes

HOOK = "pmapx._src.codemod.replicated.watching:start"
# Calls whose arguments are compared: the first ones, the second of which takes the first's results.
LOOKS = 3
# Wrappers around a pmap, one in the other, whose users are distinguished.
DEEPEST = 6
Span = tuple[str, int, int, int, int]


def start(records: Path) -> None:
    """Watches every use of ``jax.pmap`` from here on."""
    _Watch(records).begin()


class _Watch:
    """All that was seen in this process, written to a file whenever it grows."""

    def __init__(self, records: Path) -> None:
        self._file = records / f"replicated-{os.getpid()}.json"
        self._sites: list[_Site] = []
        self._rows: set[Span] = set()
        self._lock = threading.RLock()

    def begin(self) -> None:
        inner = jax.pmap

        def pmap(*args: Any, **kwargs: Any) -> Any:
            mapped = inner(*args, **kwargs)
            site = _Site(_spans(sys._getframe(1)), mapped, self)
            with self._lock:
                self._sites.append(site)
            return Watched(mapped, site)

        pmap.__name__ = pmap.__qualname__ = "pmap"
        jax.pmap = pmap
        array = fastpath.array_type()
        getitem = array.__getitem__

        def watched_getitem(x: Any, index: Any) -> Any:
            if type(index) is int and x.ndim and not x.sharding.is_fully_replicated:
                self._rows.add(_span(sys._getframe(1)))
            return getitem(x, index)

        array.__getitem__ = watched_getitem
        atexit.register(self.write)

    def write(self) -> None:
        with self._lock:
            seen = {"sites": [site.record for site in self._sites], "rows": sorted(self._rows)}
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps(seen))
            os.replace(beside, self._file)


def _span(frame: types.FrameType) -> Span:
    """Returns where the call stands that a frame is in, as ``ast`` counts."""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = (part or 0 for part in positions)
    return os.path.realpath(frame.f_code.co_filename), line, column, end_line, end_column


def _spans(frame: types.FrameType | None) -> list[Span]:
    """Returns where a call stands, and the calls that led to it, the innermost first."""
    spans: list[Span] = []
    while frame is not None and len(spans) < DEEPEST:
        spans.append(_span(frame))
        frame = frame.f_back
    return spans


class Watched:
    """A pmapped function that is looked at when it is called."""

    def __init__(self, mapped: Callable[..., Any], site: _Site) -> None:
        self._mapped = mapped
        self._site = site
        self.__wrapped__ = mapped.__wrapped__  # type: ignore[attr-defined]
        self.__name__ = getattr(mapped, "__name__", "mapped")
        self.__doc__ = mapped.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._site.look(args, kwargs)
        return self._mapped(*args, **kwargs)

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        """Binds as a method, as functions do."""
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapped, name)


class _Site:
    def __init__(self, spans: list[Span], mapped: Any, watch: _Watch) -> None:
        self._mapped = mapped
        self._watch = watch
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
            "varies": {},
            "with": {},
        }

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.record["calls"] += 1
        try:
            mapping = self._mapped._mapped
            call = mapping._reader.read(args, kwargs)
            if fastpath.is_staging():
                self.record["problem"] = "it is called inside another transformation"
                self._watch.write()
                return
            # All that a program depends on: static values, and the settings around the call.
            key = (call.signature, trace_context.trace_context())
            is_new = key not in self._signatures
            if not is_new and self._looks >= LOOKS:
                return
            self._signatures.add(key)
            self._looks += 1
            program, traced = mapping.traced(*args, **kwargs)
            self._compare(mapping, call, program)
            if is_new:
                self._analyse(program, traced, _owners(call))
        except Exception as error:  # The program goes on as it would without us.
            self.record["problem"] = f"not analysed: {type(error).__name__}: {error}"[:200]
        self._watch.write()

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

    def _analyse(self, program: Any, traced: Any, owners: dict[str, list[int]]) -> None:
        levels = program.mapping.levels
        if len(levels) != 1:
            raise ValueError("it is nested")
        (level,) = levels
        size = len(program.mapping.leaves)
        order = _body_order(levels, traced.out_info)
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(traced.out_info)[0]]
        is_tuple = type(traced.out_info) is tuple
        arity = len(traced.out_info) if is_tuple else None
        if self.record["arity"] not in ("unknown", arity):
            raise ValueError("its results have different shapes in different calls")
        self.record["arity"] = arity
        lines = _makers(traced.jaxpr)

        def ask(varying: set[int]) -> list[shard_map_body.Variation]:
            axes_of = [(level.mesh_axis,) if leaf in varying else () for leaf in range(size)]
            found = shard_map_body.shard_map_outputs(traced.jaxpr, axes_of)
            if found is None:
                raise ValueError("its program is not one shard_map")
            return found

        def note(found: list[shard_map_body.Variation], into: dict[str, Any], word: str) -> None:
            for place, (output, variation) in enumerate(zip(order, found, strict=True)):
                if level.mesh_axis not in variation.axes:
                    continue
                element = str(paths[output][0].idx) if is_tuple else "whole"
                rest = jax.tree_util.keystr(paths[output][1:] if is_tuple else paths[output])
                since = word or f"since {variation.since}"
                made = f", made at {lines[place]}" if place < len(lines) and lines[place] else ""
                into.setdefault(element, f"{rest + ' ' if rest else ''}differs {since}{made}")

        note(ask(set()), self.record["varies"], "")
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


def _body_order(levels: Any, result: Any) -> list[int]:
    """Returns the outputs in the order of the mapped body, which gives them group by group."""
    from pmapx._src.map.program import _out_axes

    groups = axes.possible_out_axes(levels)
    leaves, tree = jax.tree.flatten(result)
    found = _out_axes(levels, tree, leaves)
    return sorted(range(len(found)), key=lambda index: groups.index(found[index]))


def _is_equal(leaf: Any, axis: int) -> bool:
    """Tells whether the shards of an array are equal to the bit."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    shards = np.moveaxis(np.asarray(leaf), axis, 0)
    first = np.ascontiguousarray(shards[0]).tobytes()
    return all(np.ascontiguousarray(shard).tobytes() == first for shard in shards[1:])


_SHAPING = frozenset({"broadcast_in_dim", "reshape", "squeeze", "convert_element_type"})


def _makers(closed: Any) -> list[str]:
    """Returns, for each output of the mapped body, the line that made it, as far as known."""
    body = _body(closed.jaxpr)
    return [] if body is None else [_line(body, var) for var in body.outvars]


def _body(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr")
        inner = getattr(inner, "jaxpr", inner)
        if eqn.primitive.name == "shard_map":
            return inner
        if inner is not None:
            found = _body(inner)
            if found is not None:
                return found
    return None


def _line(jaxpr: Any, var: Any, depth: int = 0) -> str:
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    eqn = makers.get(id(var))
    while eqn is not None and eqn.primitive.name in _SHAPING and id(eqn.invars[0]) in makers:
        var = eqn.invars[0]
        eqn = makers[id(var)]
    if eqn is None:
        return ""
    inner = eqn.params.get("jaxpr")
    inner = getattr(inner, "jaxpr", inner)
    if eqn.primitive.name in ("jit", "pjit") and inner is not None and depth < 20:
        position = [id(out) for out in eqn.outvars].index(id(var))
        found = _line(inner, inner.outvars[position], depth + 1)
        if found:
            return found
    at = re.match(r"(.+?):(\d+)", source_info_util.summarize(eqn.source_info))
    return f"{os.path.basename(at[1])}:{at[2]}" if at else ""
