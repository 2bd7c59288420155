"""Arrays with a leading device axis: replicating, and reading a shard, beside the guide's code.

replicate   pmapx.device_put_replicated against the drop-in of JAX's migration guide, which stacks
            n copies first (with jnp.stack, and with np.stack as its tip for numpy arrays says).
            The numpy arrays are such that a CPU device copies them, as numpy's mostly are. Peak
            memory is that of a fresh process while one call runs, beyond the n copies, in copies.
shard       pmapx.unreplicate, and x[0] under pmapx.install(), against x[0] of today's JAX. Copies
            of a large shard are waited for.
others      what pmapx.install() adds to the indexing of an array that is not stacked.

The contestants take turns, and the best turn of each counts.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from turns import best_of_turns, described_machine, markdown, parser_of, run, shown

import pmapx
from pmapx._src.legacy.array_operators import make_getitem

KB, MB = 1 << 10, 1 << 20
REPLICATE = (  # bytes a leaf, leaves
    (KB, 1),
    (KB, 10),
    (KB, 100),
    (KB, 1000),
    (64 * KB, 1),
    (64 * KB, 100),
    (MB, 1),
    (MB, 10),
    (4 * MB, 1),
    (16 * MB, 1),
    (16 * MB, 10),
    (64 * MB, 1),
    (256 * MB, 1),
)
ROWS = ((4, 1), (32, 1), (4 * KB, 1), (MB, 1), (4 * MB, 1), (32, 1000))


def main() -> int:
    options = parse_options()
    if options.peak_of:
        name, kind, size, leaves = options.peak_of
        print_peak(name, kind, int(size), int(leaves))
        return 0
    print(described_machine())
    cells = []
    print("\nreplicate: time, and peak memory beyond the n copies\n")
    print(
        f"{'input':8}{'a leaf':>8}{'leaves':>8}{'pmapx':>12}{'drop-in':>12}{'np.stack':>12}"
        f"{'times faster':>14}{'extra copies':>14}{'drop-in':>9}"
    )
    for kind in ("numpy", "jax"):
        for size, leaves in REPLICATE:
            cells.append(replicating(kind, size, leaves, options.seconds))
            print(replicating_row(cells[-1]), flush=True)
    print("\nshard: time per leaf\n")
    print(
        f"{'a shard':>8}{'leaves':>8}{'x[0] of JAX':>14}{'unreplicate':>14}{'x[0] installed':>16}"
        f"{'times faster':>14}{'installed':>11}"
    )
    for size, leaves in ROWS:
        cells.append(reading(size, leaves, options.seconds))
        print(reading_row(cells[-1]), flush=True)
    added = added_to_others(options.seconds)
    cells.append({"case": "others", "us": round(added * 1e6, 3)})
    print(f"\nothers: x[0] of an array on one device takes {added * 1e6:.2f} µs more")
    if options.json:
        result = {"machine": described_machine(), "date": time.strftime("%Y-%m-%d"), "cells": cells}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
        Path(options.json).with_suffix(".md").write_text(table(result), encoding="utf-8")
    return 0


# Replicating.


def drop_in(stack: Any, x: Any, devices: list[jax.Device]) -> Any:
    """The guide's replacement for device_put_replicated."""
    mesh = Mesh(np.array(devices), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    return jax.tree.map(lambda y: jax.device_put(stack([y] * len(devices)), sharding), x)


CONTESTANTS: dict[str, Callable[[Any, list[jax.Device]], Any]] = {
    "pmapx": pmapx.device_put_replicated,
    "drop-in": partial(drop_in, jnp.stack),
    "np.stack": partial(drop_in, np.stack),
}


def replicating(kind: str, size: int, leaves: int, seconds: float) -> dict[str, Any]:
    tree = made(kind, size, leaves)
    contestants = {k: v for k, v in CONTESTANTS.items() if (kind, k) != ("jax", "np.stack")}

    def turn(name: str) -> float:
        start = time.perf_counter()
        jax.block_until_ready(contestants[name](tree, jax.devices()))
        return time.perf_counter() - start

    for name in contestants:
        turn(name)  # compile
    best = best_of_turns({name: partial(turn, name) for name in contestants}, seconds)
    extra = {}
    if size * leaves >= 16 * MB:
        del tree
        extra = {name: extra_copies(name, kind, size, leaves) for name in contestants}
    return {
        "case": "replicate",
        "input": kind,
        "bytes": size,
        "leaves": leaves,
        "us": {name: round(t * 1e6, 1) for name, t in best.items()},
        "extra_copies": extra,
    }


def made(kind: str, size: int, leaves: int) -> list[Any]:
    tree = []
    for seed in range(leaves):
        buffer = np.empty(size + 128, np.uint8)
        start = -buffer.ctypes.data % 64 + 16  # Where memory is 64-byte aligned it is shared.
        tree.append(buffer[start : start + size].view(np.float32))
        np.random.default_rng(seed).standard_normal(out=tree[-1], dtype=np.float32)
    return jax.device_put(tree, jax.devices()[0]) if kind == "jax" else tree


def extra_copies(name: str, kind: str, size: int, leaves: int) -> float:
    """Measures the peak in a process of its own, where nothing is left over from before."""
    command = [sys.executable, __file__, "--peak-of", name, kind, str(size), str(leaves)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return round(float(done.stdout) / (size * leaves) - jax.device_count(), 2)


def print_peak(name: str, kind: str, size: int, leaves: int) -> None:
    jax.block_until_ready(CONTESTANTS[name](made(kind, size, 1), jax.devices()))  # compile
    tree = jax.block_until_ready(made(kind, size, leaves))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # What was freed is given back, so that it counts again.
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew from what is held now.
    copies = jax.block_until_ready(CONTESTANTS[name](tree, jax.devices()))
    print(memory("VmHWM") - before)
    del copies


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KB for line in lines if line.startswith(field))


# Reading a shard.


def reading(size: int, leaves: int, seconds: float) -> dict[str, Any]:
    shard = np.ones(size // 4, np.float32)
    tree = [pmapx.pmap(lambda x: x + 1)(np.stack([shard] * jax.device_count()))] * leaves
    first = partial(jax.tree.map, lambda x: x[0])
    batch = max(1, min(100, 2000 * KB // size // leaves))

    def timed(read: Callable[[Any], Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            out = read(tree)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count / leaves

    def installed() -> float:
        with pmapx.install():
            timed(first, 1)  # Installing itself leaves nothing in the processor's caches.
            return timed(first, batch)

    turns = {
        "x[0]": lambda: timed(first, max(1, batch // 20)),
        "unreplicate": lambda: timed(pmapx.unreplicate, batch),
        "installed": installed,
    }
    for turn in turns.values():
        turn()  # compile
    best = best_of_turns(turns, seconds)
    return {
        "case": "row",
        "bytes": size,
        "leaves": leaves,
        "us": {name: round(t * 1e6, 2) for name, t in best.items()},
    }


def added_to_others(seconds: float) -> float:
    """What the installed x[0] does before it hands an array that is not stacked to JAX."""
    x = jax.device_put(np.ones(8, np.float32), jax.devices()[0])
    theirs = lambda self, index: None
    ours = make_getitem(theirs)

    def timed(getitem: Callable[[Any, Any], Any]) -> float:
        start = time.perf_counter()
        for _ in range(1000):
            getitem(x, 0)
        return (time.perf_counter() - start) / 1000

    best = best_of_turns({"theirs": lambda: timed(theirs), "ours": lambda: timed(ours)}, seconds)
    return best["ours"] - best["theirs"]


# Reporting.


def size_shown(size: int) -> str:
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def replicating_cells(c: dict[str, Any]) -> list[str]:
    us, extra = c["us"], c["extra_copies"]
    rival = min(t for name, t in us.items() if name != "pmapx")
    times = [shown(us[name]) if name in us else "" for name in CONTESTANTS]
    copies = [f"{extra[name]:.1f}" if extra else "" for name in ("pmapx", "drop-in")]
    size = size_shown(c["bytes"])
    return [c["input"], size, str(c["leaves"]), *times, f"{rival / us['pmapx']:.1f}", *copies]


def replicating_row(c: dict[str, Any]) -> str:
    widths = (8, 8, 12, 12, 12, 14, 14, 9)
    first, *rest = replicating_cells(c)
    return f"{first:8}" + "".join(f"{t or '-':>{w}}" for t, w in zip(rest, widths, strict=True))


def reading_cells(c: dict[str, Any]) -> list[str]:
    us = c["us"]
    times = [shown(us[name]) for name in ("x[0]", "unreplicate", "installed")]
    ratios = [f"{us['x[0]'] / us[name]:.0f}" for name in ("unreplicate", "installed")]
    return [size_shown(c["bytes"]), str(c["leaves"]), *times, *ratios]


def reading_row(c: dict[str, Any]) -> str:
    widths = (8, 8, 14, 14, 16, 14, 11)
    return "".join(f"{t:>{w}}" for t, w in zip(reading_cells(c), widths, strict=True))


def table(result: dict[str, Any]) -> str:
    replicate = [c for c in result["cells"] if c["case"] == "replicate"]
    rows = [c for c in result["cells"] if c["case"] == "row"]
    others = next(c["us"] for c in result["cells"] if c["case"] == "others")
    lines = [
        f"Measured on {result['date']}: {result['machine']}.",
        "",
        *markdown(
            ["input", ">a leaf", ">leaves", ">pmapx", ">guide's drop-in", ">with np.stack"]
            + [">times faster than the best", ">extra copies, pmapx", ">extra copies, drop-in"],
            map(replicating_cells, replicate),
        ),
        "",
        *markdown(
            [">a shard", ">leaves", ">`x[0]` of JAX", ">`unreplicate`", ">`x[0]` installed"]
            + [">times faster", ">installed"],
            map(reading_cells, rows),
        ),
        "",
        f"Other arrays' `x[0]` takes {others:.2f} µs more with `install()` on.",
    ]
    return "\n".join(lines) + "\n"


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--json", metavar="PATH", help="write the figures there, and a table beside"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="per cell (%(default)s)")
    parser.add_argument("--peak-of", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
