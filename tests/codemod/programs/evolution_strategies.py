"""Evolution strategies: devices try mirrored perturbations and gather one another's returns."""

import jax
import jax.numpy as jnp
import numpy as np

SIGMA = 0.1
LEARNING_RATE = 0.2
PAIRS_PER_DEVICE = 4

target = np.sin(np.arange(6, dtype=np.float32))


def fitness(theta):
    return -jnp.sum((theta - target) ** 2) + 0.5 * jnp.sum(jnp.cos(3 * (theta - target)))


def centered_ranks(x):
    ranks = jnp.argsort(jnp.argsort(x.ravel())).astype(jnp.float32)
    return (ranks / (x.size - 1) - 0.5).reshape(x.shape)


def es_step(theta, key):
    """All devices get the same key and make different noise of it."""
    my_key = jax.random.fold_in(key, jax.lax.axis_index("workers"))
    noise = jax.random.normal(my_key, (PAIRS_PER_DEVICE, theta.size))
    plus = jax.vmap(lambda e: fitness(theta + SIGMA * e))(noise)
    minus = jax.vmap(lambda e: fitness(theta - SIGMA * e))(noise)
    returns = jax.lax.all_gather(jnp.stack([plus, minus]), "workers")
    weights = centered_ranks(returns)[jax.lax.axis_index("workers")]
    local = (weights[0] - weights[1]) @ noise
    n = jax.lax.psum(PAIRS_PER_DEVICE, "workers")
    gradient = jax.lax.psum(local, "workers") / (n * SIGMA)
    theta = theta + LEARNING_RATE * gradient
    stats = {"mean": returns.mean(), "best": returns.max()}
    return theta, stats


parallel_es_step = jax.pmap(es_step, axis_name="workers", in_axes=(0, None))


def main():
    theta = jnp.zeros((jax.device_count(), target.size))
    key = jax.random.PRNGKey(5)
    history = []
    for generation in range(6):
        key, subkey = jax.random.split(key)
        theta, stats = parallel_es_step(theta, subkey)
        stats = jax.tree.map(lambda x: float(x[0]), stats)
        history.append(stats)
        print(f"generation {generation}: {stats}")
    spread = np.ptp(np.asarray(theta), axis=0).max()
    assert spread == 0.0, "workers drifted apart"
    return {"history": history, "theta": np.asarray(theta[0])}


if __name__ == "__main__":
    main()
