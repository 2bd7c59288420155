"""A program that joins a cluster where there is one; its steps take each process's own rows."""

import os

import jax
import jax.numpy as jnp
import numpy as np


def setup():
    if "COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize(
            os.environ["COORDINATOR_ADDRESS"],
            num_processes=int(os.environ["WORLD_SIZE"]),
            process_id=int(os.environ["RANK"]),
        )


def mean_and_spread(x):
    mean = jax.lax.pmean(x.mean(), "world")
    spread = jax.lax.pmean(jnp.mean((x - mean) ** 2), "world")
    return mean, jnp.sqrt(spread)


def whiten(x, mean, spread):
    return (x - mean) / spread


def main():
    setup()
    statistics = jax.pmap(mean_and_spread, axis_name="world")
    p_whiten = jax.pmap(whiten)
    rng = np.random.RandomState(jax.process_index())
    x = rng.gamma(2.0, size=(jax.local_device_count(), 6)).astype(np.float32)
    mean, spread = statistics(x)
    white = p_whiten(x, mean, spread)
    if jax.process_index() == 0:
        print(f"mean {float(mean[0]):.4f}, spread {float(spread[0]):.4f}")
    return {"mean": np.asarray(mean), "white": np.asarray(white)}


if __name__ == "__main__":
    main()
