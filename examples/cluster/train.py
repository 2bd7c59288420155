"""A multi-host program: linear regression with data-parallel gradient descent.

Each process draws its own examples, the gradients are averaged over all devices of all processes,
and every process ends with the same weights. The program does not depend on how it was started:
`slurm.sh` and `jobset.yaml` start it on a cluster, `mpirun -n 4 python train.py` with Open MPI, and
`pmapx run -n 4 --devices 2 train.py` on one machine.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pmapx

FEATURES, EXAMPLES = 8, 64


def loss(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


def step(weights, x, y):
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return weights - 0.1 * lax.pmean(gradient, "batch"), lax.pmean(value, "batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    pmapx.initialize()
    here, devices = jax.process_index(), jax.local_device_count()
    truth = np.random.default_rng(0).normal(size=FEATURES).astype(np.float32)
    random = np.random.default_rng(1 + here)  # Other examples in each process.

    train = pmapx.pmap(step, axis_name="batch", donate_argnums=0)
    weights = np.zeros((devices, FEATURES), np.float32)
    for _ in range(options.steps):
        x = random.normal(size=(devices, EXAMPLES, FEATURES)).astype(np.float32)
        weights, value = train(weights, x, x @ truth)
        # On CPU, collectives of several steps under way at once can wait for each other.
        jax.block_until_ready(weights)

    pmapx.barrier("trained")
    error = float(np.abs(np.asarray(weights) - truth).max())
    print(
        f"process {here} of {jax.process_count()}, {jax.device_count()} devices: "
        f"loss {float(value[0]):.2e}, error {error:.2e}, weights {float(weights[0].sum()):.6f}"
    )


if __name__ == "__main__":
    main()
