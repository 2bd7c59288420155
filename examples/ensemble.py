"""An ensemble: networks that share nothing but the code, trained side by side.

Each network has its own seed and its own sample of the data. Training needs no communication, so N
devices train N networks in the time of one; with more networks than devices, each device trains
several. At the end their predictions are combined, and their spread is the uncertainty.
"""

import argparse
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pmapx

HIDDEN, EXAMPLES = 32, 64


def init(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (1, HIDDEN)) * 2,
        "b1": jnp.linspace(-6, 6, HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 1)) / jnp.sqrt(HIDDEN),
    }


def predict(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return (jnp.tanh(x[:, None] @ params["w1"] + params["b1"]) @ params["w2"])[:, 0]


def train(key: jax.Array, x: jax.Array, y: jax.Array, steps: int) -> dict[str, jax.Array]:
    """One network, from its seed to its end, in one program."""
    init_key, sample_key = jax.random.split(key)
    chosen = jax.random.randint(sample_key, (EXAMPLES,), 0, len(x))  # its own sample

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((predict(params, x[chosen]) - y[chosen]) ** 2)

    def step(params: dict[str, jax.Array], _: None) -> tuple[dict[str, jax.Array], None]:
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, jax.grad(loss)(params)), None

    return lax.scan(step, init(init_key), length=steps)[0]


def ask(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The members' mean and spread, which all of them know."""
    mine = predict(params, x)
    mean = lax.pmean(mine, "members")
    return mean, jnp.sqrt(lax.pmean((mine - mean) ** 2, "members"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()

    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, 200).astype(np.float32)  # nothing is known beyond 2
    y = (np.sin(2 * x) + 0.1 * random.normal(size=200)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), options.members)

    train_all = pmapx.pmap(
        train, in_axes=(0, None, None), static_broadcasted_argnums=3, oversubscribe=True
    )
    ask_all = pmapx.pmap(
        ask, axis_name="members", in_axes=(0, None), out_axes=None, oversubscribe=True
    )
    params = train_all(keys, x, y, options.steps)
    points = np.array([-1.5, 0.0, 1.5, 4.0], np.float32)
    mean, spread = ask_all(params, points)

    print(f"{options.members} members on {jax.device_count()} device(s), {options.steps} steps")
    for point, m, s in zip(points, np.asarray(mean), np.asarray(spread), strict=True):
        truth = f"sin {np.sin(2 * point):+.2f}" if abs(point) <= 2 else "beyond the data"
        print(f"at {point:+.1f}: {m:+.2f} +- {s:.2f}  ({truth})")
    assert np.allclose(mean[:3], np.sin(2 * points[:3]), atol=0.3), "the ensemble did not learn"
    assert spread[3] > 2 * spread[:3].max(), "the ensemble is sure of what it cannot know"


if __name__ == "__main__":
    main()
