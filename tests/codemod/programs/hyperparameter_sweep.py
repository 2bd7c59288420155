"""A sweep in waves: one setting a device, fewer settings than devices in the last wave."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np


def train(setting, x, y, steps):
    """Ridge regression by gradient descent with this setting."""

    def loss(w):
        return jnp.mean((x @ w - y) ** 2) + setting["l2"] * jnp.sum(w**2)

    def step(w, _):
        return w - setting["lr"] * jax.grad(loss)(w), None

    w, _ = jax.lax.scan(step, jnp.zeros(x.shape[1]), None, length=steps)
    return {"w": w, "loss": loss(w)}


def sweep(settings, x, y, steps=10):
    """Runs all settings, as many at once as there are devices."""
    run = functools.partial(train, steps=steps)
    results = []
    for start in range(0, len(settings), jax.local_device_count()):
        wave = settings[start : start + jax.local_device_count()]
        stacked = {name: np.array([s[name] for s in wave], np.float32) for name in wave[0]}
        out = jax.pmap(run, in_axes=(0, None, None))(stacked, x, y)
        results += [jax.tree.map(lambda v: np.asarray(v[i]), out) for i in range(len(wave))]
    return results


def main():
    rng = np.random.RandomState(0)
    x = rng.normal(size=(20, 4)).astype(np.float32)
    y = (x @ rng.normal(size=4) + 0.1 * rng.normal(size=20)).astype(np.float32)
    grid = itertools.product([0.01, 0.05, 0.1, 0.2, 0.3], [0.0, 0.01, 0.1])
    settings = [{"lr": lr, "l2": l2} for lr, l2 in grid]
    results = sweep(settings[:11], x, y)
    best = min(range(len(results)), key=lambda i: float(results[i]["loss"]))
    print("best", settings[best], float(results[best]["loss"]))
    return {"losses": [r["loss"] for r in results], "best": best, "w": results[best]["w"]}


if __name__ == "__main__":
    main()
