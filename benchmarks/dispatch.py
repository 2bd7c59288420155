"""What a call costs: pmapx.pmap, jax.pmap and hand-written jit(shard_map), side by side.

The mapped function does next to nothing (`x * 2 + 1` on each leaf of shape (devices, 8)), so what
is timed is the way to it. In each cell the contestants take turns, a batch of calls a turn, and
the best turn of each counts. The hand-written call runs twice, as two functions: how far the
second is from the first is the noise of the cell.

Cases:
  placed      arrays on their devices; each call's result is the next call's argument
  numpy       numpy arrays
  misplaced   one array committed to a single device, the others placed; the hand-written call
              moves it with jax.device_put first, jax.pmap refuses it on more than one device
  static      as placed, with a static argument beside; the hand-written call has static_argnums
  method      as static, where the static argument is the object that has the function as a method
  first call  a new function each time: trace, compile and run
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from turns import best_of_turns, described_machine, parser_of, run, shown

import pmapx

DEVICES = (1, 2, 8)
LEAVES = (1, 10, 100, 1000)
CONTESTANTS = ("hand-written", "again", "pmapx", "jax.pmap")

Leaves = list[Any]
Call = Callable[[Leaves], Leaves]


def main() -> int:
    options = parse_options()
    counts = [count for count in DEVICES if count <= jax.device_count()]
    if left_out := sorted(set(DEVICES) - set(counts)):
        print(f"left out: {left_out} devices, for {jax.device_count()} are there")
    print(f"{described_machine()}\nTime per call, and ratios to the hand-written call\n")
    print(
        f"{'case':11}{'devices':>8}{'leaves':>8}{'hand-written':>14}{'pmapx':>12}{'jax.pmap':>12}"
        f"{'noise':>8}{'pmapx':>8}{'jax.pmap':>10}  bar for pmapx"
    )
    cells = []
    for devices, leaves in itertools.product(counts, LEAVES):
        for case, best in measured(devices, leaves, options):
            cells.append(cell(case, devices, leaves, best))
            print(row(cells[-1]), flush=True)
    judged = [c for c in cells if c["bar"] is not None]
    slower = sum(c["slower_than_jax_pmap"] for c in cells)
    print(f"\n{sum(c['met'] for c in judged)} of {len(judged)} bars met; ", end="")
    print(f"slower than jax.pmap beyond noise in {slower} of {len(cells)} cells")
    if options.json:
        result = {"machine": described_machine(), "date": time.strftime("%Y-%m-%d"), "cells": cells}
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


# The contestants.


def per_device(leaves: Leaves) -> Leaves:
    return [x * 2 + 1 for x in leaves]


def hand_written(fun: Call, devices: list[jax.Device]) -> Call:
    def block(leaves: Leaves) -> Leaves:
        out = fun([lax.squeeze(x, (0,)) for x in leaves])
        return [lax.expand_dims(x, (0,)) for x in out]

    spec = PartitionSpec("i")
    mesh = Mesh(np.array(devices), ("i",))
    return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


TRANSFORMS: dict[str, Callable[[Call, list[jax.Device]], Call]] = {
    "hand-written": hand_written,
    "again": hand_written,
    "pmapx": lambda fun, devices: pmapx.pmap(fun, axis_name="i", devices=devices),
    "jax.pmap": lambda fun, devices: jax.pmap(fun, axis_name="i", devices=devices),
}


def hand_written_static(fun: Callable[..., Any], devices: list[jax.Device]) -> Callable[..., Any]:
    mapped = hand_written(lambda leaves: fun(None, leaves), devices).__wrapped__
    return jax.jit(lambda static, leaves: mapped(leaves), static_argnums=0)


STATIC_TRANSFORMS: dict[str, Callable[..., Callable[..., Any]]] = {
    "hand-written": hand_written_static,
    "again": hand_written_static,
    "pmapx": lambda fun, devices: pmapx.pmap(
        fun, axis_name="i", devices=devices, static_broadcasted_argnums=0
    ),
    "jax.pmap": lambda fun, devices: jax.pmap(
        fun, axis_name="i", devices=devices, static_broadcasted_argnums=0
    ),
}


def static_calls(devices: list[jax.Device]) -> dict[str, Call]:
    """The contestants with a static argument, which is bound without a frame of Python."""
    return {
        name: partial(transform(lambda _, leaves: per_device(leaves), devices), "static")
        for name, transform in STATIC_TRANSFORMS.items()
    }


def method_calls(devices: list[jax.Device]) -> dict[str, Call]:
    """The contestants as methods of an object; each is looked up anew for a call."""
    methods = {
        name.replace("-", "_").replace(".", "_"): transform(
            lambda _, leaves: per_device(leaves), devices
        )
        for name, transform in STATIC_TRANSFORMS.items()
    }
    trainer = type("Trainer", (), methods)()
    return {
        "hand-written": lambda leaves: trainer.hand_written(leaves),
        "again": lambda leaves: trainer.again(leaves),
        "pmapx": lambda leaves: trainer.pmapx(leaves),
        "jax.pmap": lambda leaves: trainer.jax_pmap(leaves),
    }


def new_call(name: str, devices: list[jax.Device]) -> Call:
    """A contestant around a function that JAX has not seen yet."""
    return TRANSFORMS[name](lambda leaves: per_device(leaves), devices)


# Measuring.


def measured(
    devices: int, leaves: int, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each case with the best seconds per call of each contestant that takes it."""
    on = jax.devices()[:devices]
    placing = NamedSharding(Mesh(np.array(on), ("i",)), PartitionSpec("i"))
    arrays = [np.full((devices, 8), k, np.float32) for k in range(leaves)]
    placed = jax.device_put(arrays, placing)
    elsewhere = jax.devices()[devices == 1 < jax.device_count()]
    misplaced = [jax.device_put(arrays[0], elsewhere), *placed[1:]]

    def put_then(call: Call) -> Call:
        return lambda leaves: call([jax.device_put(leaves[0], placing), *leaves[1:]])

    calls = {name: new_call(name, on) for name in CONTESTANTS}
    moving = {k: put_then(c) if k in ("hand-written", "again") else c for k, c in calls.items()}

    yield "placed", best_calls(calls, placed, options.seconds, feed_back=True)
    yield "static", best_calls(static_calls(on), placed, options.seconds, feed_back=True)
    yield "method", best_calls(method_calls(on), placed, options.seconds, feed_back=True)
    yield "numpy", best_calls(calls, arrays, options.seconds)
    yield "misplaced", best_calls(moving, misplaced, options.seconds)
    # A turn is one compilation, whose time varies more than that of calls.
    yield "first call", best_first_calls(on, placed, 6 * options.seconds)


def best_calls(
    calls: dict[str, Call], args: Leaves, seconds: float, feed_back: bool = False
) -> dict[str, float]:
    def per_call(call: Call, batch: int) -> float:
        # Results are waited for at the end of the batch only.
        start = time.perf_counter()
        out = call(args)
        for _ in range(batch - 1):
            out = call(out if feed_back else args)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / batch

    accepted = {}
    for name, call in calls.items():
        try:
            per_call(call, 2)  # compile
            accepted[name] = call
        except ValueError:
            if name != "jax.pmap":
                raise
    once = max(per_call(call, 3) for call in accepted.values())
    batch = max(1, min(1000, round(0.005 / once)))
    turns = {name: partial(per_call, call, batch) for name, call in accepted.items()}
    return best_of_turns(turns, seconds)


def best_first_calls(devices: list[jax.Device], args: Leaves, seconds: float) -> dict[str, float]:
    def first_call(name: str) -> float:
        start = time.perf_counter()
        jax.block_until_ready(new_call(name, devices)(args))
        return time.perf_counter() - start

    return best_of_turns({name: partial(first_call, name) for name in CONTESTANTS}, seconds)


# Reporting.


def bar_for(case: str, devices: int, leaves: int) -> float | None:
    """The ratio to the hand-written call that pmapx promises, where it promises one."""
    if case == "first call":
        return 1.05 if jax.default_backend() == "gpu" else 1.10
    if leaves == 1 and devices > 1:
        return None
    if case == "static":
        return 1.05
    if leaves == 1:
        return 1.10
    return 1.05


def cell(case: str, devices: int, leaves: int, best: dict[str, float]) -> dict[str, Any]:
    ratio = {name: seconds / best["hand-written"] for name, seconds in best.items()}
    noise = abs(ratio["again"] - 1)
    bar = bar_for(case, devices, leaves)
    rival = ratio.get("jax.pmap")
    return {
        "case": case,
        "devices": devices,
        "leaves": leaves,
        "us": {name: round(seconds * 1e6, 2) for name, seconds in best.items()},
        "ratio": {name: round(r, 3) for name, r in ratio.items()},
        "bar": bar,
        "met": bar is None or ratio["pmapx"] <= bar,
        "slower_than_jax_pmap": rival is not None
        and ratio["pmapx"] > rival * (1 + max(noise, 0.05)),
    }


def row(c: dict[str, Any]) -> str:
    us, ratio = c["us"], c["ratio"]
    rival = f"{ratio['jax.pmap']:.2f}" if "jax.pmap" in ratio else "-"
    return (
        f"{c['case']:11}{c['devices']:8}{c['leaves']:8}{shown(us['hand-written']):>14}"
        f"{shown(us['pmapx']):>12}{shown(us.get('jax.pmap')):>12}"
        f"{abs(ratio['again'] - 1):8.1%}{ratio['pmapx']:8.2f}{rival:>10}  {verdict(c)}"
    ).rstrip()


def verdict(c: dict[str, Any]) -> str:
    words = []
    if c["bar"] is not None:
        words.append(f"{c['bar']:.2f} {'met' if c['met'] else 'MISSED'}")
    if c["slower_than_jax_pmap"]:
        words.append("SLOWER than jax.pmap")
    return ", ".join(words)


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--json", metavar="PATH", help="write the figures there too")
    parser.add_argument("--seconds", type=float, default=4.0, help="per cell (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="0.4 seconds per cell; noisy")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 0.4
    return options


if __name__ == "__main__":
    run(main)
