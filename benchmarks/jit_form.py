"""A training step in four forms: jax.pmap, pmapx.pmap, jax.jit of jax.shard_map, and plain jax.jit.

The last is what ``pmapx migrate --to jit`` writes: without collectives, with in_shardings and
out_shardings. A step of momentum on a network of dense layers feeds its state back, and donates
it. Batches are on the devices already, or NumPy arrays on the host.

The contestants take turns, and the best turn of each counts. pmapx.pmap takes two turns in each
round, as if it were two contestants: how far these differ is the noise.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from turns import best_of_turns, described_machine, markdown, parser_of, run, shown

import pmapx

CASES = (  # layers, width, examples a device
    (2, 32, 4),
    (24, 64, 8),
    (8, 128, 32),
    (4, 256, 64),
)
# A GPU spends the steps above on launches; these are compute.
GPU_CASES = (*CASES, (8, 2048, 1024), (4, 8192, 2048))
MAPS = ("jax.pmap", "pmapx.pmap")
FORMS = (*MAPS, "jit(shard_map)", "jit")
AGAIN = "pmapx.pmap again"


def main() -> int:
    options = parse_options()
    print(described_machine())
    print(f"\n{'layers':>8}{'width':>8}{'examples':>10}  {'batch':10}", end="")
    print("".join(f"{form:>16}" for form in FORMS), end="")
    print("".join(f"{f'jit / {form}':>17}" for form in MAPS), f"{'noise':>7}")
    cells = []
    for case in CASES if jax.default_backend() == "cpu" else GPU_CASES:
        for where in ("device", "host"):
            cells.append(cell(*case, where, options.seconds))
            print(row(cells[-1]), flush=True)
    if options.json:
        result = {"machine": described_machine(), "date": time.strftime("%Y-%m-%d"), "cells": cells}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
        Path(options.json).with_suffix(".md").write_text(table(result), encoding="utf-8")
    return 0


def loss_fn(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean((x - y) ** 2)


def step(state: Any, batch: Any, mean: Callable[[Any], Any]) -> Any:
    params, velocity = state
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = mean(grads)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.01 * v, params, velocity)
    return (params, velocity), mean(loss)


def cell(layers: int, width: int, examples: int, where: str, seconds: float) -> dict[str, Any]:
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated, sharded = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("batch"))
    random = np.random.default_rng(0)
    params = [
        (random.normal(size=(width, width)).astype(np.float32) / width**0.5, np.zeros(width, "f"))
        for _ in range(layers)
    ]
    state = params, jax.tree.map(np.zeros_like, params)
    batch = tuple(random.normal(size=(n * examples, width)).astype(np.float32) for _ in range(2))
    stacked = jax.tree.map(lambda x: x.reshape(n, examples, width), batch)
    pmean = functools.partial(jax.lax.pmean, axis_name="batch")
    mapped = functools.partial(step, mean=pmean)
    specs = {"in_specs": (jax.P(), jax.P("batch")), "out_specs": jax.P(), "check_vma": False}
    steps = {
        "jax.pmap": jax.pmap(mapped, axis_name="batch", donate_argnums=0),
        "pmapx.pmap": pmapx.pmap(mapped, axis_name="batch", donate_argnums=0),
        "jit(shard_map)": jax.jit(jax.shard_map(mapped, mesh=mesh, **specs), donate_argnums=0),
        "jit": jax.jit(
            functools.partial(step, mean=lambda x: x),
            in_shardings=(replicated, sharded),
            out_shardings=replicated,
            donate_argnums=0,
        ),
    }
    given = {form: stacked if form in MAPS else batch for form in FORMS}
    if where == "device":
        given = {form: jax.device_put(x, sharded) for form, x in given.items()}
    states = {form: jax.device_put(state, replicated) for form in FORMS}
    for form in MAPS:
        states[form] = pmapx.device_put_replicated(state, jax.devices())

    def turn(form: str) -> float:
        start = time.perf_counter()
        for _ in range(5):
            states[form], loss = steps[form](states[form], given[form])
            jax.block_until_ready(loss)
        return (time.perf_counter() - start) / 5

    for form in FORMS:
        turn(form)  # compile
    turns = {form: functools.partial(turn, form) for form in FORMS}
    best = best_of_turns({**turns, AGAIN: turns["pmapx.pmap"]}, seconds)
    return {
        "layers": layers,
        "width": width,
        "examples": examples,
        "batch": where,
        "us": {form: round(t * 1e6, 1) for form, t in best.items()},
    }


def ratio(cell: dict[str, Any], other: str) -> str:
    return f"{cell['us']['jit'] / cell['us'][other]:.2f}"


def noise(cell: dict[str, Any]) -> str:
    first, again = cell["us"]["pmapx.pmap"], cell["us"][AGAIN]
    return f"{abs(again / first - 1):.1%}"


def row(cell: dict[str, Any]) -> str:
    head = f"{cell['layers']:>8}{cell['width']:>8}{cell['examples']:>10}  {cell['batch']:10}"
    times = "".join(f"{shown(cell['us'][form]):>16}" for form in FORMS)
    ratios = "".join(f"{ratio(cell, form):>17}" for form in MAPS)
    return f"{head}{times}{ratios}{noise(cell):>8}"


def table(result: dict[str, Any]) -> str:
    """The table of the documentation."""
    columns = ["layers", "width", "examples per device", "batch on", *(f">`{f}`" for f in FORMS)]
    rows = [
        [str(c["layers"]), str(c["width"]), str(c["examples"]), c["batch"]]
        + [shown(c["us"][form]) for form in FORMS]
        + [*(ratio(c, form) for form in MAPS), noise(c)]
        for c in result["cells"]
    ]
    lines = markdown([*columns, *(f">jit / {form}" for form in MAPS), ">noise"], rows)
    return "\n".join([*lines, "", f"{result['machine']}, {result['date']}.", ""])


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of turns for each case")
    parser.add_argument("--json", help="where to write the result, with a table beside it")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
