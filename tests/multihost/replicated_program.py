"""A program for several processes with state on all devices. Sets RESULTS.

It is run with pmapx installed, and again after ``pmapx migrate --style replicated``.
"""

import jax
import jax.numpy as jnp
import numpy as np

HERE, DEVICES = jax.process_index(), jax.local_device_count()


def train_step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"])
    grads = jax.lax.pmean(grads, "batch")
    new = {"w": state["w"] - 0.25 * grads, "n": state["n"] + 1}
    return new, jax.lax.pmean(loss, "batch"), batch.sum()


p_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
p_total = jax.pmap(lambda state: jax.lax.psum(state["w"], "batch"), axis_name="batch")


def main():
    init = {"w": np.array([1, 0.5, 0], np.float32), "n": np.int32(0)}
    state = jax.device_put_replicated(init, jax.local_devices())
    for step in range(3):
        rows = (np.arange(DEVICES * 3) % 5 - 2 + HERE + step).astype(np.float32)
        state, loss, own = p_step(state, rows.reshape(DEVICES, 3))
    total = p_total(state)
    return {
        "state": jax.device_get(jax.tree.map(lambda x: x[0], state)),
        "loss": float(loss[0]),
        "own": np.asarray(own),
        "total": np.asarray(total[0]),
    }


RESULTS = main()
