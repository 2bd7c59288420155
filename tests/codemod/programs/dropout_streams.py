"""Random streams: one key a device, one key for all, keys kept in the state."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random


def dropout(key, x, rate):
    keep = random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def step(state, batch, key):
    """The key differs by device, or is folded with the device's number, or is the state's."""
    shared, state_key = random.split(state["key"])
    own = random.fold_in(shared, jax.lax.axis_index("batch"))

    def loss_fn(w):
        h = dropout(key, batch, 0.2) @ w
        h = dropout(own, jnp.tanh(h), 0.5)
        return jnp.mean((h.sum(-1) - 1) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(state["w"])
    w = state["w"] - 0.1 * jax.lax.pmean(grad, "batch")
    # Everyone's noise on the weights is the same.
    w = w + 1e-3 * random.normal(shared, w.shape)
    return {"w": w, "key": state_key}, loss


p_step = jax.pmap(step, axis_name="batch")
p_split = jax.pmap(random.split)


def shard_key(key):
    return random.split(key, jax.local_device_count())


def main():
    n = jax.local_device_count()
    key = random.PRNGKey(0)
    key, init_key, data_key = random.split(key, 3)
    state = {"w": random.normal(init_key, (4, 3)), "key": key}
    state = jax.device_put_replicated(state, jax.local_devices())
    batch = random.normal(data_key, (n, 6, 4))
    losses = []
    for number in range(3):
        keys = shard_key(random.fold_in(data_key, number))
        state, loss = p_step(state, batch, keys)
        losses.append(loss)
    losses = np.stack([np.asarray(loss) for loss in losses])
    keys = shard_key(random.PRNGKey(3))
    halves = p_split(keys)
    assert halves.shape == (n, 2, 2)
    kept, used = np.asarray(halves[:, 0]), np.asarray(halves[:, 1])
    same = np.asarray(state["key"])
    assert (same == same[0]).all()
    typed = jax.pmap(lambda k: random.uniform(k, (2,)))(random.split(random.key(9), n))
    print("losses", losses.mean(1))
    return {
        "losses": losses,
        "w": np.asarray(state["w"]),
        "kept": kept,
        "used": used,
        "typed": np.asarray(typed),
    }


if __name__ == "__main__":
    main()
