"""The listener in the first run: what each mapped body is, and samples of its calls.

The program that runs is in the global form, ``jax.jit`` of ``jax.shard_map``. Each map is asked for
a verdict when it is traced, and each call of the jitted function around it gives samples.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapx._src.batch_parallel import verdict as verdicts
from pmapx._src.batch_parallel.traces import PER_DEVICE
from pmapx._src.codemod.to_jit import collective_calls, samples
from pmapx._src.codemod.to_jit.costs import Costs
from pmapx._src.codemod.to_jit.decisions import site_name
from pmapx._src.codemod.to_jit.samples import CallSamples, Sample, drawn, rounded
from pmapx._src.codemod.to_jit.stacked.unstacked_body import (
    UnstackedBody,
    named_argument,
    unstacked,
)
from pmapx._src.replication import jaxprs
from pmapx._src.watch import frames, record_files
from pmapx._src.watch.transforms import Call, Listener, MadeFunction, attach

# Calls of each function that give samples, random ones of each, and the bytes of all.
CALLS = 5
DRAWN = 2
MOST_BYTES = 1 << 30


def start(records: Path) -> None:
    """Watches every map from now on; ``settings.json`` in the folder has the root."""
    settings = json.loads((records / "settings.json").read_text(encoding="utf-8"))
    collective_calls.install()
    attach(MapListener(records, settings["root"], settings["topology"]))


class MapListener(Listener):
    """All that was found in this process, written to a file whenever it grows."""

    transforms = ("jit", "shard_map")

    def __init__(self, records: Path, root: str, topology: str | None = None) -> None:
        self._records, self._root = records, root + os.sep
        self._topology = topology
        self._maps: list[_Map] = []
        self._jits: dict[frames.Span, _Jit] = {}
        self._active = threading.local()
        self._bytes = 0

    def made(self, function: MadeFunction) -> bool:
        """Watches what the program's own files make."""
        frame = next(frames.callers(), None)
        if frame is None or function.kind not in self.transforms:
            return False
        span = frames.span(frame)
        if not span[0].startswith(self._root):
            return False
        if function.kind == "jit":
            function.state = self._jits.setdefault(span, _Jit(span, self._topology))
        else:
            function.state = _Map(span, function)
            self._maps.append(function.state)
        return True

    def call(self, call: Call) -> Any:
        """Asks for the verdict on a map, and takes samples of a jitted function's call."""
        stack = self._stack
        if call.function.kind == "shard_map":
            self._asked(call.function.state, call)
            return call.run()
        jit = call.function.state
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(call.args)):
            # What traces it may count the calls inside: the map is asked for when the program runs.
            traced, self._active.traced = self._traced, [*self._traced, jit]
            try:
                return call.run()
            finally:
                self._active.traced = traced
        if stack or jit.calls >= CALLS or self._bytes > MOST_BYTES:
            return call.run()
        static = samples.several(call.function.options.get("static_argnums"))
        before = samples.dynamic(call.args, call.kwargs, static)
        inputs = [samples.on_host(leaf) for leaf in jax.tree.leaves(before)]
        stack.append(jit)
        try:
            with jit.costs.counted():
                result = call.run()
        finally:
            stack.pop()
        if not jit.maps:  # JAX had its trace.
            for state, args in jit.waiting:
                jit.maps.append(state)
                state.ask(args, self._root)
        if jit.maps:
            self._sample(call, jit, inputs, result, static)
            self.end()
        return result

    def _asked(self, state: _Map, call: Call) -> None:
        """Asks for the verdict on a map that is traced."""
        stack = self._stack
        for jit in stack:
            jit.maps.append(state)
        if getattr(self._active, "is_asking", False):
            return
        args = jax.tree.map(_struct, call.args)
        if not stack:
            for jit in self._traced:
                jit.waiting.append((state, args))
            return
        self._active.is_asking = True
        try:
            with contextlib.ExitStack() as around:
                for jit in stack:
                    around.enter_context(jit.costs.counted(-1))
                state.ask(args, self._root)
        finally:
            self._active.is_asking = False
        self.end()

    @property
    def _traced(self) -> list[_Jit]:
        traced: list[_Jit] = getattr(self._active, "traced", [])
        return traced

    def _sample(self, call: Call, jit: _Jit, inputs: list[Any], result: Any, static: Any) -> None:
        # What an audit traces, as for another topology, is not a map of the program.
        self._active.is_asking = True
        try:
            found = jit.samples(call, inputs, result, static)
            file, line, column, *_ = jit.span
            name = site_name(os.path.relpath(file, self._root), line, column)
            path = samples.path_of(self._records, name, jit.calls)
            self._bytes += samples.save(path, found)
            jit.calls += 1
        except Exception as error:  # The program goes on as it would without us.
            jit.problem = f"no samples: {type(error).__name__}: {error}"[:200]
        finally:
            self._active.is_asking = False

    @property
    def _stack(self) -> list[_Jit]:
        if not hasattr(self._active, "stack"):
            self._active.stack = []
        stack: list[_Jit] = self._active.stack
        return stack

    def end(self) -> None:
        """Writes what is known."""
        found = {
            "maps": [each.record for each in self._maps],
            "jits": [each.record for each in self._jits.values() if each.maps],
            "device_count": jax.device_count() if self._maps else 0,
            "processes": jax.process_count() if self._maps else 1,
        }
        record_files.write(self._records, "maps", found)


class _Jit:
    """A place that makes jitted functions with maps inside."""

    def __init__(self, span: frames.Span, topology: str | None = None) -> None:
        self.span = span
        self.maps: list[_Map] = []
        # Maps that were traced while the program traced something else, with their arguments.
        self.waiting: list[tuple[_Map, Any]] = []
        self.calls = 0
        self.problem = ""
        # Positions of arguments that come with another sharding than the map's.
        self.elsewhere: set[int] = set()
        self.has_keywords = False
        # Whether all arguments come with the sharding of the map.
        self.is_placed = True
        self.costs = Costs(topology)

    @property
    def record(self) -> dict[str, Any]:
        return {
            "span": self.span,
            "maps": sorted({each.span for each in self.maps}),
            "calls": self.calls,
            "problem": self.problem,
            "elsewhere": sorted(self.elsewhere),
            "has_keywords": self.has_keywords,
            "is_placed": self.is_placed,
            "cost": self.costs.record,
        }

    def samples(self, call: Call, inputs: list[Any], result: Any, static: Any) -> CallSamples:
        """Returns the samples of a call: its own, and random ones."""
        live = samples.dynamic(call.args, call.kwargs, static)
        self.has_keywords |= bool(call.kwargs)
        leaves, tree = jax.tree.flatten(live)
        mapped = self.maps[-1]
        is_sharded = mapped.is_sharded if len(mapped.is_sharded) == len(inputs) else []
        self._note_shardings(mapped, live)

        def outputs(data: list[Any]) -> list[Any]:
            given = jax.tree.unflatten(tree, map(samples.placed, data, leaves))
            args, kwargs = samples.with_static(call.args, given, static)
            with self.costs.counted():
                result = call.target(*args, **kwargs)
            return [samples.on_host(leaf) for leaf in jax.tree.leaves(result)]

        def sample(data: list[Any], known: list[Any] | None, seed: int) -> Sample:
            made = outputs(data) if known is None else known
            noise = [0.0] * len(made)
            for again in range(2):
                generator = np.random.default_rng((seed, again))
                near = outputs([rounded(x, mapped.epsilon, generator) for x in data])
                noise = [
                    max(old, samples.distance(one, other))
                    for old, one, other in zip(noise, made, near, strict=True)
                ]
            return Sample(known is None, data, made, noise)

        found = [sample(inputs, [samples.on_host(x) for x in jax.tree.leaves(result)], 0)]
        found[0].is_replicated = [x.is_fully_replicated for x in jax.tree.leaves(result)]
        if self.calls == 0:
            given = jax.tree.unflatten(tree, map(samples.placed, inputs, leaves))
            self.costs.audit(call.target, *samples.with_static(call.args, given, static))
        for seed in range(1, DRAWN + 1) if self.calls == 0 and is_sharded else ():
            generator = np.random.default_rng(seed)
            data = [drawn(x, s, generator) for x, s in zip(inputs, is_sharded, strict=True)]
            found.append(sample(data, None, seed))
        return CallSamples(found, mapped.epsilon, mapped.length)

    def _note_shardings(self, mapped: _Map, live: tuple[Any, Any]) -> None:
        if len(jax.tree.leaves(live[0])) != len(mapped.shardings):
            self.is_placed = False
            return
        wanted = iter(mapped.shardings)
        for position, argument in enumerate(live[0]):
            for leaf in jax.tree.leaves(argument):
                sharding = next(wanted)
                is_placed = isinstance(leaf, jax.Array) and leaf.committed
                if is_placed and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                    self.elsewhere.add(position)
                self.is_placed &= is_placed and position not in self.elsewhere


class _Map:
    """A map, and the verdict on its body."""

    def __init__(self, span: frames.Span, function: MadeFunction) -> None:
        self.span = span
        self._function = function
        self.epsilon, self.length = 0.0, 1
        self.is_sharded: list[bool] = []
        self.shardings: list[Any] = []
        self.record: dict[str, Any] = {
            "span": span,
            "function": getattr(function.fun, "__name__", ""),
            "traces": 0,
            "reasons": [],
            "collectives": [],
            "calls": [],
            "reached": [],
            "stacked": [],
            "per_device": [],
            "batch_axes": [],
            "results": {},
            "devices": 0,
            "axis": None,
        }

    def ask(self, args: Any, root: str) -> None:
        """Asks for the verdict on the body for arguments of some shapes."""
        self.record["traces"] += 1
        try:
            self._ask(args, root)
        except Exception as error:
            self._refuse(f"not analysed: {type(error).__name__}: {error}"[:200])

    def _refuse(self, why: str) -> None:
        if why not in self.record["reasons"]:
            self.record["reasons"].append(why)

    def _ask(self, args: Any, root: str) -> None:
        options = self._function.options
        mesh = options["mesh"]
        if len(mesh.axis_names) != 1:
            return self._refuse("its mesh has several axes")
        (axis,) = mesh.axis_names
        self.record["devices"], self.record["axis"] = mesh.size, str(axis)
        specs = broadcast(options["in_specs"], args)
        axes = [batch_axis(spec, axis) for spec in specs]
        leaves, tree = jax.tree.flatten(args)
        self.is_sharded = [each is not None for each in axes]
        self.shardings = [jax.NamedSharding(mesh, spec) for spec in specs]
        sharded = itertools.compress(leaves, self.is_sharded)
        self.length = max([1, *(int(np.prod(x.shape)) for x in sharded)])
        local = [_local(leaf, a, mesh.size) for leaf, a in zip(leaves, axes, strict=True)]
        arguments = jax.tree.unflatten(tree, local)
        by_argument = jax.tree.unflatten(tree, axes)
        sizes: dict[str, Any] = {"axis_name": axis, "axis_size": mesh.size}
        with collective_calls.watching(axis, root) as watch:
            found = verdicts.decide(self._function.fun, arguments, by_argument, **sizes)
        if not (found.is_batch_parallel and self._has_specs(found)):
            # None: only results have a device axis, and what is of size 1 is a batch of one.
            for examples_at in (0, 1, None):
                is_stacked = self._is_stacked_result
                body = unstacked(self._function.fun, arguments, axes, is_stacked, examples_at)
                if examples_at == 1 and not body.stacked:
                    continue
                with collective_calls.watching(axis, root) as again:
                    other = verdicts.decide(body, body.arguments, body.axes, **sizes)
                if other.is_batch_parallel and self._has_specs(other, body):
                    found, watch = other, again
                    self._note_device_axes(body, other)
                    break
                is_other = body.has_axes or PER_DEVICE in jax.tree.leaves(body.axes)
                if examples_at == 0 and other.reasons and is_other:
                    found = body.explained(other)
            else:
                if found.is_batch_parallel:
                    self._refuse("a result has a device axis, which has no global equivalent")
        if found.traces is not None:
            self.epsilon = max(self.epsilon, _epsilon(found.traces.local.jaxpr))
        for reason in found.reasons:
            name = lambda found: named_argument(self._function.fun, int(found[1]))
            self._refuse(re.sub(r"^argument (\d+)", name, str(reason)))
        self._note(found, watch)

    def _is_stacked_result(self, result: Any) -> list[bool]:
        (axis,) = self._function.options["mesh"].axis_names
        specs = broadcast(self._function.options["out_specs"], result)
        return [batch_axis(spec, axis) == 0 for spec in specs]

    def _note_device_axes(self, body: UnstackedBody, found: verdicts.Verdict) -> None:
        for name, found_here in (("stacked", body.stacked), ("per_device", body.per_device)):
            self.record[name] = sorted({*self.record[name], *found_here})
        if body.stacked:
            axes = {*self.record["batch_axes"], body.batch_axis}
            self.record["batch_axes"] = sorted(axes)
        for position, kinds in body.results(found.outputs).items():
            known = self.record["results"].setdefault(position, [])
            self.record["results"][position] = sorted({*known, *kinds})

    def _has_specs(self, found: verdicts.Verdict, body: UnstackedBody | None = None) -> bool:
        """Whether results are sharded as the map's, except for those with a device axis."""
        assert found.traces is not None
        (axis,) = self._function.options["mesh"].axis_names
        indexed = jax.tree.unflatten(found.traces.out_tree, range(len(found.outputs)))
        specs = broadcast(self._function.options["out_specs"], indexed)
        return all(
            (body is not None and body.is_stacked(number))
            or batch_axis(spec, axis) == output.batch_axis
            for number, (spec, output) in enumerate(zip(specs, found.outputs, strict=True))
        )

    def _note(self, found: verdicts.Verdict, watch: collective_calls.Watch) -> None:
        for each in found.collectives:
            entry = {
                "file": os.path.realpath(each.file) if each.file else "",
                "line": each.line,
                "column": each.column,
                "name": each.name,
                "replacement": each.replacement.name,
                "powers": sorted(set(each.powers)),
                "meaning": each.meaning,
                "library": each.library or "",
            }
            if entry not in self.record["collectives"]:
                self.record["collectives"].append(entry)
        for call in watch.calls:
            entry = vars(call).copy()
            if entry not in self.record["calls"]:
                self.record["calls"].append(entry)
        self.record["reached"] = sorted({*map(tuple, self.record["reached"]), *watch.reached})


def broadcast(specs: Any, tree: Any) -> list[Any]:
    """Returns the spec of each leaf of a tree."""
    is_leaf = lambda x: x is None or isinstance(x, jax.P)
    wide = jax.tree.map(
        lambda spec, part: [spec if spec is not None else jax.P()] * len(jax.tree.leaves(part)),
        specs if is_leaf(specs) or not isinstance(specs, list) else tuple(specs),
        tree,
        is_leaf=is_leaf,
    )
    return jax.tree.leaves(wide, is_leaf=lambda x: isinstance(x, jax.P))


def batch_axis(spec: Any, axis: Any) -> int | None:
    """Returns the dimension that a spec shards over the mapped axis."""
    for position, part in enumerate(spec):
        if part == axis or part == (axis,):
            return position
    return None


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(np.shape(leaf), aval.dtype, weak_type=aval.weak_type)


def _local(leaf: Any, axis: int | None, size: int) -> jax.ShapeDtypeStruct:
    shape = list(leaf.shape)
    if axis is not None:
        shape[axis] //= size
    return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, weak_type=leaf.weak_type)


def _epsilon(jaxpr: Any) -> float:
    """Returns the precision of the narrowest float that a program computes with."""
    found = 0.0
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jnp.issubdtype(dtype, jnp.inexact):
                found = max(found, float(jnp.finfo(dtype).eps))
        for inner in jaxprs.subjaxprs(list(eqn.params.values())):
            found = max(found, _epsilon(inner))
    return found
