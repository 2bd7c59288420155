"""The listener in the second run: jitted functions on the samples of the maps that they were."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import jax

from pmapx._src.codemod.to_jit import agreement, samples
from pmapx._src.codemod.to_jit.costs import Costs
from pmapx._src.codemod.to_jit.placement.step_state import StepState
from pmapx._src.watch import frames, record_files
from pmapx._src.watch.transforms import Call, Listener, MadeFunction, attach


def start(records: Path) -> None:
    """Watches the functions of ``settings.json`` from now on."""
    settings = json.loads((records / "settings.json").read_text(encoding="utf-8"))
    attach(JitListener(records, settings))


class JitListener(Listener):
    """Compares each call of the jitted functions that were maps."""

    transforms = ("jit",)

    def __init__(self, records: Path, settings: dict[str, Any]) -> None:
        self._records, self._root = records, settings["root"] + os.sep
        self._samples = Path(settings["samples"])
        self._sites, self._topology = settings["sites"], settings["topology"]
        self._found: dict[str, dict[str, Any]] = {}
        self._costs: dict[str, Costs] = {}
        # With FSDP, the arguments of a function that have state.
        self._held: dict[str, list[Any] | None] = {}

    def made(self, function: MadeFunction) -> bool:
        """Watches the functions that were maps."""
        frame = next(frames.callers(), None)
        if frame is None or function.kind != "jit":
            return False
        file, line, *_ = frames.span(frame)
        for site in self._sites:
            is_here = file == os.path.join(self._root, site["file"])
            if is_here and site["line"] <= line <= site["end_line"]:
                new = {"site": site["name"], "calls": 0, "compared": 0, "drawn": 0, "worst": 0.0,
                       "drift": [], "failure": "", "cost": {}, "state": {}}  # fmt: skip
                self._held[site["name"]] = site.get("held")
                function.state = self._found.setdefault(site["name"], new)
                return True
        return False

    def call(self, call: Call) -> Any:
        """Evaluates the samples of a call before it runs, and compares its own result."""
        state = call.function.state
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(call.args)):
            return call.run()
        number, state["calls"] = state["calls"], state["calls"] + 1
        kept = samples.load(samples.path_of(self._samples, state["site"], number))
        if kept is None:
            return call.run()
        try:
            self._compare(call, kept, state)
        except Exception as error:
            self._fail(state, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300])
        finally:
            self.end()
        with self._costs[state["site"]].counted():
            result = call.run()
        self._check_shardings(call, result, kept.samples[0].is_replicated, state)
        own = [samples.on_host(leaf) for leaf in jax.tree.leaves(result)]
        expected = kept.samples[0].outputs
        state["drift"].append(agreement.relative(expected, own))
        self.end()
        return result

    def _compare(self, call: Call, kept: samples.CallSamples, state: dict[str, Any]) -> None:
        costs: Costs = self._costs.setdefault(state["site"], Costs(self._topology))
        state["cost"] = costs.record
        static = samples.several(call.function.options.get("static_argnums"))
        leaves, tree = jax.tree.flatten(samples.dynamic(call.args, call.kwargs, static))
        for sample in kept.samples:
            if len(leaves) != len(sample.inputs):
                return self._fail(state, "its arguments differ from those of the shard_map")
            given = jax.tree.unflatten(tree, map(samples.placed, sample.inputs, leaves))
            args, kwargs = samples.with_static(call.args, given, static)
            with costs.counted():
                result = call.target(*args, **kwargs)
            if not state["compared"]:
                given = jax.tree.unflatten(tree, map(samples.placed, sample.inputs, leaves))
                costs.audit(call.target, *samples.with_static(call.args, given, static))
            paths, _ = jax.tree_util.tree_flatten_with_path(result)
            if len(paths) != len(sample.outputs):
                return self._fail(state, "its result has another structure than under shard_map")
            for (path, leaf), expected, noise in zip(
                paths, sample.outputs, sample.noise, strict=True
            ):
                found = samples.on_host(leaf)
                part, words = agreement.difference(
                    expected, found, noise, kept.epsilon, kept.length
                )
                state["worst"] = max(state["worst"], min(part, 1e9))
                if part > 1 or math.isnan(part):
                    which = "random inputs" if sample.is_drawn else "the program's inputs"
                    where = f"output{jax.tree_util.keystr(path)}"
                    self._fail(state, f"on {which}, {where} {words}")
            state["compared"] += 1
            state["drawn"] += sample.is_drawn

    def _check_shardings(
        self, call: Call, result: Any, expected: list[bool], state: dict[str, Any]
    ) -> None:
        static = samples.several(call.function.options.get("static_argnums"))
        step = StepState(*samples.dynamic(call.args, call.kwargs, static), result)
        held = self._held[state["site"]]
        is_state = step.outputs_of(held) if held else set()
        if held and (why := step.why_not_sharded(held)):
            self._fail(state, why)
        state["state"] = state["state"] or step.facts
        for index, leaf in enumerate(jax.tree.leaves(result)):
            if index not in is_state and leaf.is_fully_replicated != expected[index]:
                self._fail(state, "a result has another sharding than under shard_map")

    def _fail(self, state: dict[str, Any], why: str) -> None:
        state["failure"] = state["failure"] or why

    def end(self) -> None:
        """Writes what was compared."""
        record_files.write(self._records, "compared", {"sites": list(self._found.values())})
