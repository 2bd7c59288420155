# jit: train_step
# The key of each device draws nothing at a dropout rate of 0.
import jax
import jax.numpy as jnp

RATE = 0.0


def dropout(key, x):
    if RATE == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - RATE, x.shape), x / (1 - RATE), 0)


def train_step(w, x, key):
    # Each device has its own key.
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    grads = jax.grad(lambda w: jnp.mean((dropout(key, x) @ w) ** 2))(w)
    return w - 0.1 * jax.lax.pmean(grads, "batch")


def main():
    n = jax.local_device_count()
    step = jax.pmap(train_step, axis_name="batch", in_axes=(0, 0, None))
    w = jax.device_put_replicated(jnp.ones(3), jax.local_devices())
    x = jnp.sin(jnp.arange(n * 4 * 3.0)).reshape(n, 4, 3)
    for i in range(3):
        w = step(w, x, jax.random.key(i))
        print(w[0])


if __name__ == "__main__":
    main()
