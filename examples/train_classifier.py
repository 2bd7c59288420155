"""Train a small classifier with a plain pmap loop, three ways side by side.

The loop is the usual one: the train state is stacked, one copy per device, each device gets a
shard of the batch, gradients are averaged with `lax.pmean`, and the old state is donated. It runs
with `pmapx.pmap`, with `jax.pmap` and with hand-written `jax.jit(jax.shard_map(...))`, from the
same seed and on the same batches, so that losses and speed can be compared.
"""

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import pmapx

FEATURES, HIDDEN, CLASSES = 32, 64, 10
Batch = tuple[np.ndarray, np.ndarray]


def main() -> int:
    options = parse_options()
    devices = jax.local_device_count()
    print(
        f"pmapx {pmapx.__version__}, JAX {jax.__version__}, "
        f"{devices} {jax.default_backend()} devices\n"
        f"An MLP {FEATURES}-{HIDDEN}-{HIDDEN}-{CLASSES}, {options.steps} steps, "
        f"a batch of {devices} x {options.batch} examples, three ways, interleaved"
    )
    batches = synthetic_batches(options.seed, devices, options.batch, count=64)
    held_out = batches.pop()

    runs = [
        Run("pmapx.pmap", pmapx.pmap),
        Run("jax.pmap", jax.pmap),
        Run("jit(shard_map)", hand_written),
    ]
    for run in runs:
        run.start(options.seed, devices)
    # Turns of a few steps each: what else the machine does then slows all three alike.
    for first in progress(range(0, options.steps, options.turn)):
        for run in runs:
            run.train(batches, first, min(first + options.turn, options.steps))
    report(runs, held_out)
    return 0 if losses_agree(runs) else 1


# The model and its step: what one device does. Nothing here knows how it is mapped.


def init(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
    params = [
        {
            "w": (rng.normal(size=(m, n)) * np.sqrt(2 / m)).astype(np.float32),
            "b": np.zeros(n, np.float32),
        }
        for m, n in itertools.pairwise(sizes)
    ]
    return {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}


def logits(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], 1))


def train_step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
    value, grads = jax.value_and_grad(loss)(state["params"], x, y)
    grads = lax.pmean(grads, "batch")
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.05 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, {"loss": lax.pmean(value, "batch")}


def eval_step(state: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.pmean(jnp.mean(jnp.argmax(logits(state["params"], x), -1) == y), "batch")


# The three ways to map it.


def hand_written(
    step: Callable[..., Any], axis_name: str, donate_argnums: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """What one writes without pmap: each device's block has a leading axis of size 1."""
    spec = PartitionSpec(axis_name)

    def block(*args: Any) -> Any:
        out = step(*jax.tree.map(lambda x: lax.squeeze(x, (0,)), args))
        return jax.tree.map(lambda x: lax.expand_dims(x, (0,)), out)

    mesh = Mesh(np.array(jax.local_devices()), (axis_name,))
    # With check_vma on, the gradient of a replicated parameter comes summed already.
    mapped = jax.shard_map(block, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


@dataclasses.dataclass
class Run:
    """One of the three loops: its state, its losses and what it cost."""

    name: str
    transform: Callable[..., Any]
    losses: list[jax.Array] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    timed_steps: int = 0
    traces: int = 0
    compiles: int = 0

    def start(self, seed: int, devices: int) -> None:
        def counted_step(*args: Any) -> Any:
            self.traces += 1
            return train_step(*args)

        self.step = self.transform(counted_step, axis_name="batch", donate_argnums=(0,))
        self.evaluate = self.transform(eval_step, axis_name="batch")
        self.state = jax.tree.map(lambda x: np.stack([x] * devices), init(seed))

    def train(self, batches: list[Batch], first: int, last: int) -> None:
        compiles_before = Compiles.count
        start = time.perf_counter()
        for i in range(first, last):
            self.state, metrics = self.step(self.state, *batches[i % len(batches)])
            self.losses.append(metrics["loss"])
        jax.block_until_ready(self.state)
        if first > 0:  # the first turn compiles
            self.seconds += time.perf_counter() - start
            self.timed_steps += last - first
        self.compiles += Compiles.count - compiles_before

    def loss_curve(self) -> np.ndarray:
        return np.array([np.asarray(loss)[0] for loss in self.losses])

    def accuracy(self, held_out: Batch) -> float:
        return float(np.asarray(self.evaluate(self.state, *held_out))[0])


class Compiles:
    """How many programs JAX has compiled in this process."""

    count = 0

    @classmethod
    def listen(cls, event: str, duration: float, **kwargs: Any) -> None:
        cls.count += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(Compiles.listen)


# Data, progress and the table.


def synthetic_batches(seed: int, devices: int, rows: int, count: int) -> list[Batch]:
    """Each class is three clusters: learnable, and not by a linear model."""
    rng = np.random.default_rng(seed + 1)
    centers = rng.normal(size=(CLASSES * 3, FEATURES))
    cluster = rng.integers(len(centers), size=(count, devices, rows))
    x = (centers[cluster] + 0.6 * rng.normal(size=(*cluster.shape, FEATURES))).astype(np.float32)
    y = (cluster % CLASSES).astype(np.int32)
    return list(zip(x, y, strict=True))


def progress(turns: range) -> Iterator[int]:
    """The turns, with a bar on a terminal and a few plain lines elsewhere."""
    if sys.stdout.isatty():
        try:
            from rich.progress import track
        except ModuleNotFoundError:
            pass
        else:
            yield from track(turns, description="Training", transient=True)
            return
    shown = 0
    for done, first in enumerate(turns, start=1):
        yield first
        percent = 100 * done // len(turns)
        if sys.stdout.isatty():
            bar = "#" * (percent // 4)
            print(f"\rTraining [{bar:25}] {percent:3d} %", end="", flush=True)
        elif percent >= shown + 20:
            shown = percent
            print(f"Training {percent:3d} %", flush=True)
    if sys.stdout.isatty():
        print()


def report(runs: list[Run], held_out: Batch) -> None:
    print(f"\n{'':16}{'loss':>8}{'accuracy':>10}{'steps/s':>9}{'traces':>8}{'compiles':>10}")
    for run in runs:
        speed = f"{run.timed_steps / run.seconds:.0f}" if run.seconds else "-"
        print(
            f"{run.name:16}{run.loss_curve()[-1]:8.4f}{run.accuracy(held_out):10.1%}"
            f"{speed:>9}{run.traces:8}{run.compiles:10}"
        )

    first, *others = (run.loss_curve() for run in runs)
    if all(np.array_equal(first, other) for other in others):
        print(f"\nAll {len(first)} losses are equal to the bit in the three loops.")
    elif losses_agree(runs):
        worst = max(float(np.max(np.abs(first - other))) for other in others)
        print(f"\nThe losses agree, though not to the bit: they differ by at most {worst:.1e}.")
    else:
        print("\nThe losses DISAGREE between the three loops.")


def losses_agree(runs: list[Run]) -> bool:
    first, *others = (run.loss_curve() for run in runs)
    return all(np.allclose(first, other, rtol=1e-4, atol=1e-6) for other in others)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="training steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="examples per device (%(default)s)")
    parser.add_argument("--turn", type=int, default=20, help="steps per turn (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for weights and data (%(default)s)")
    options = parser.parse_args()
    for name in ("steps", "batch", "turn"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
