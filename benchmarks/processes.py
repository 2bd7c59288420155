"""What a call costs in several processes: pmapx.pmap, jax.pmap and jit(shard_map), side by side.

Processes of virtual CPU devices (--layouts; 2x2 is two processes of two devices each) run a
training loop that feeds its state back: each call's result is the next call's argument. pmapx.pmap
and jax.pmap take and give host-local arrays. The hand-written jit(shard_map) runs on global arrays,
for which nothing has to be converted. The mapped function does next to nothing (`x * 2 + 1` on each
leaf of shape (devices, 8)), so what is timed is the way to it.

In each cell the contestants take turns, a batch of calls a turn, and the best turn of each counts,
on the process where it was slowest. The hand-written call runs twice, as two functions: how far
the second is from the first is the noise of the cell.

Bars: at most 1.2 times the hand-written call at 1000 leaves on JAX 0.10 and 0.11, and at most 1.6
times at any number of leaves on other releases. At 100 and 1000 leaves, at least 3 times faster
than jax.pmap on JAX 0.10, and 1.5 times on other releases.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from turns import (
    best_of_turns,
    described_devices,
    described_machine,
    markdown,
    parser_of,
    run,
    shown,
)

from pmapx._src.distributed.launcher import environment, reserved_port

LEAVES = (1, 10, 100, 1000)
CONTESTANTS = ("hand-written", "again", "pmapx", "jax.pmap")

Leaves = list[Any]
Call = Callable[[Leaves], Leaves]


def main() -> int:
    options = parse_options()
    if options.worker is not None:
        work(options)
        return 0
    cells, machine = [], ""
    for layout in options.layouts:
        measured = measure(options, layout)
        machine = measured[0]["machine"]
        cells += [cell(layout, leaves, measured) for leaves in options.leaves]
    print(f"{machine}\nTime per call, and ratios to the hand-written call\n")
    print(
        f"{'processes':>10}{'leaves':>8}{'hand-written':>14}{'pmapx':>12}{'jax.pmap':>12}{'noise':>8}"
        f"{'pmapx':>8}{'jax.pmap':>10}{'faster':>9}  bars for pmapx"
    )
    for c in cells:
        print(row(c))
    judged = [met for c in cells for met in c["met"].values()]
    print(f"\n{sum(judged)} of {len(judged)} bars met")
    if options.json:
        result = {
            "machine": machine,
            "date": time.strftime("%Y-%m-%d"),
            "cells": cells,
        }
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
        Path(options.json).with_suffix(".md").write_text(table(result), encoding="utf-8")
    return 0


def measure(options: argparse.Namespace, layout: str) -> list[dict[str, Any]]:
    """Run the processes; gives what each measured."""
    processes, devices = map(int, layout.split("x"))
    with reserved_port() as port, tempfile.TemporaryDirectory() as directory:
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], "--worker", f"{directory}/{rank}"],
                env=environment(os.environ, rank, processes, port, devices),
            )
            for rank in range(processes)
        ]
        try:
            for process in started:
                if process.wait(options.seconds * len(options.leaves) * 3 + 300) != 0:
                    raise SystemExit(f"a process ended with status {process.returncode}")
        finally:
            for process in started:
                process.kill()
        return [json.loads(Path(directory, str(rank)).read_text()) for rank in range(processes)]


# In each process.


def work(options: argparse.Namespace) -> None:
    import jax

    jax.distributed.initialize()
    best = {str(leaves): best_calls(leaves, options.seconds) for leaves in options.leaves}
    release = ".".join(jax.__version__.split(".")[:2])
    machine = described_machine().replace(described_devices(), "CPU devices")
    facts = {"machine": machine, "release": release, "best": best}
    Path(options.worker).write_text(json.dumps(facts))


def contestants(leaves: int) -> dict[str, tuple[Call, Leaves]]:
    """Each contestant around a function of its own, with its first argument."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import pmapx

    def per_device(xs: Leaves) -> Leaves:
        return [x * 2 + 1 for x in xs]

    def block(xs: Leaves) -> Leaves:
        return [y[None] for y in per_device([x[0] for x in xs])]

    spec = PartitionSpec("i")
    mesh = Mesh(np.array(jax.devices()), ("i",))
    local_mesh = Mesh(np.array(jax.local_devices()), ("i",))
    own = [
        jax.device_put(
            np.full((jax.local_device_count(), 8), k, np.float32), NamedSharding(local_mesh, spec)
        )
        for k in range(leaves)
    ]
    whole = [
        jax.make_array_from_single_device_arrays(
            (jax.device_count(), 8),
            NamedSharding(mesh, spec),
            [shard.data for shard in x.addressable_shards],
        )
        for x in own
    ]

    def hand_written() -> Call:
        fun = lambda xs: block(xs)
        mapped = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(mapped)

    return {
        "hand-written": (hand_written(), whole),
        "again": (hand_written(), whole),
        "pmapx": (pmapx.pmap(lambda xs: per_device(xs), "i"), own),
        "jax.pmap": (jax.pmap(lambda xs: per_device(xs), "i"), own),
    }


def best_calls(leaves: int, seconds: float) -> dict[str, float]:
    """Best seconds per call of each contestant, over turns that all processes take together."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    calls = contestants(leaves)

    def turn(call: Call, args: Leaves, batch: int) -> float:
        sync_global_devices("turn")
        start = time.perf_counter()
        out = args
        for _ in range(batch):
            out = call(out)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / batch

    for call, args in calls.values():
        turn(call, args, 3)  # compile
    batch = max(3, min(300, 3000 // leaves))
    # As many in each process: the turns are taken together.
    rounds = max(3, round(seconds / 0.1 / len(calls)))
    turns = {name: partial(turn, *calls[name], batch) for name in calls}
    return best_of_turns(turns, rounds=rounds)


# Reporting.


def cell(layout: str, leaves: int, measured: list[dict[str, Any]]) -> dict[str, Any]:
    best = {
        name: max(process["best"][str(leaves)][name] for process in measured)
        for name in CONTESTANTS
    }
    ratio = {name: seconds / best["hand-written"] for name, seconds in best.items()}
    faster = ratio["jax.pmap"] / ratio["pmapx"]
    release = measured[0]["release"]
    met = {}
    if release in ("0.10", "0.11"):
        if leaves >= 1000:
            met["at most 1.2 x hand-written"] = ratio["pmapx"] <= 1.2
    else:
        met["at most 1.6 x hand-written"] = ratio["pmapx"] <= 1.6
    if leaves >= 100:
        least = 3.0 if release == "0.10" else 1.5
        met[f"at least {least} x faster than jax.pmap"] = faster >= least
    return {
        "processes": layout.replace("x", " x "),
        "leaves": leaves,
        "us": {name: round(seconds * 1e6, 1) for name, seconds in best.items()},
        "ratio": {name: round(r, 3) for name, r in ratio.items()},
        "faster_than_jax_pmap": round(faster, 2),
        "met": met,
    }


def row(c: dict[str, Any]) -> str:
    us, ratio = c["us"], c["ratio"]
    verdicts = ", ".join(f"{bar} {'met' if met else 'MISSED'}" for bar, met in c["met"].items())
    return (
        f"{c['processes']:>10}{c['leaves']:8}{shown(us['hand-written']):>14}{shown(us['pmapx']):>12}"
        f"{shown(us['jax.pmap']):>12}{abs(ratio['again'] - 1):8.1%}{ratio['pmapx']:8.2f}"
        f"{ratio['jax.pmap']:10.2f}{c['faster_than_jax_pmap']:9.1f}  {verdicts}"
    ).rstrip()


def table(result: dict[str, Any]) -> str:
    columns = ["processes x devices", ">leaves", ">hand-written", ">pmapx", ">jax.pmap", ">noise"]
    columns += [">pmapx ÷ hand-written", ">times faster than jax.pmap", "targets"]
    lines = [f"Measured on {result['date']}: {result['machine']}.", ""]
    return "\n".join(lines + markdown(columns, map(cells_of, result["cells"]))) + "\n"


def cells_of(c: dict[str, Any]) -> list[str]:
    us, ratio = c["us"], c["ratio"]
    times = [shown(us[name]) for name in ("hand-written", "pmapx", "jax.pmap")]
    ratios = [f"{abs(ratio['again'] - 1):.1%}", f"{ratio['pmapx']:.2f}"]
    verdicts = ", ".join("met" if met else "MISSED" for met in c["met"].values())
    return [
        c["processes"],
        str(c["leaves"]),
        *times,
        *ratios,
        f"{c['faster_than_jax_pmap']:.1f}",
        verdicts,
    ]


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--json", metavar="PATH", help="write the figures there, and a table beside"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="per cell, about (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="1 second per cell; noisy")
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=("2x2", "4x1", "4x2"),
        metavar="PxD",
        help="P processes of D devices each",
    )
    parser.add_argument("--leaves", type=int, nargs="+", default=LEAVES, metavar="N")
    parser.add_argument("--worker", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.seconds = 1.0
    return options


if __name__ == "__main__":
    run(main)
