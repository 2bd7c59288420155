"""pmap handed around as a value: chosen, stored, passed to a runner."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def run_rounds(step, state, data, map_fn=jax.pmap, axis_name="i"):
    """Runs a step over every item of the data, mapped as the caller likes."""
    mapped = map_fn(step, axis_name=axis_name)
    out = []
    for item in data:
        state, value = mapped(state, item)
        out.append(np.asarray(value))
    return state, np.stack(out)


def running_mean(state, x):
    count, mean = state
    total = jax.lax.psum(x.shape[0], "i")
    batch_mean = jax.lax.pmean(x.mean(), "i")
    new_mean = mean + (batch_mean - mean) * total / (count + total)
    return (count + total, new_mean), batch_mean


def choose(n_devices):
    return jax.pmap if n_devices > 1 else jax.vmap


TRANSFORMS = {"devices": jax.pmap, "batch": jax.vmap}


class Runner:
    map_fn = staticmethod(jax.pmap)

    def __init__(self, fun, map_fn=None):
        map_fn = map_fn or self.map_fn
        self.call = map_fn(fun, axis_name="i")

    def __call__(self, *args):
        return self.call(*args)


def normalise(x):
    return x / jnp.sqrt(jax.lax.psum(jnp.sum(x**2), "i"))


def main():
    n = jax.local_device_count()
    data = np.random.RandomState(0).normal(size=(3, n, 4)).astype(np.float32)
    start = (np.zeros(n, np.int32), np.zeros(n, np.float32))
    (counts, means), history = run_rounds(running_mean, start, data)
    batched = functools.partial(run_rounds, map_fn=jax.vmap)
    (_, batched_means), _ = batched(running_mean, start, data)
    assert np.allclose(means, batched_means)

    mapped = choose(n)(normalise, axis_name="i")
    by_name = {name: f(normalise, axis_name="i")(data[0]) for name, f in TRANSFORMS.items()}
    results = {
        "counts": counts,
        "means": means,
        "history": history,
        "chosen": mapped(data[0]),
        "devices": by_name["devices"],
        "runner": Runner(normalise)(data[1]),
        "own runner": Runner(normalise, map_fn=functools.partial(jax.pmap, devices=None))(data[2]),
    }
    print({name: np.shape(value) for name, value in results.items()})
    return jax.tree.map(np.asarray, results)


if __name__ == "__main__":
    main()
