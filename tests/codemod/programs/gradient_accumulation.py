"""Large batches in small pieces: gradients summed on the device, averaged over devices once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MICRO_BATCHES = 4


def loss_fn(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["in"])
    logits = hidden @ params["out"]
    one_hot = jax.nn.one_hot(batch["y"], logits.shape[-1])
    loss = -jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1)
    return loss.mean()


def accumulate(params, batch, pieces):
    """Mean loss and gradient over equal pieces of the device's batch."""
    grad_fn = jax.value_and_grad(loss_fn)
    size = batch["y"].shape[0] // pieces

    def piece(i):
        return {k: lax.dynamic_slice_in_dim(v, i * size, size) for k, v in batch.items()}

    def add(i, total):
        return jax.tree.map(jnp.add, total, grad_fn(params, piece(i)))

    total = lax.fori_loop(1, pieces, add, grad_fn(params, piece(0)))
    return jax.tree.map(lambda x: x / pieces, total)


def train_step(params, batch, lr, *, pieces):
    loss, grads = accumulate(params, batch, pieces)
    grads = lax.pmean(grads, "batch")
    clip = jnp.minimum(1.0, 1.0 / (1e-6 + jnp.sqrt(sum(jnp.sum(g**2) for g in grads.values()))))
    params = jax.tree.map(lambda p, g: p - lr * clip * g, params, grads)
    return params, lax.pmean(loss, "batch"), clip


def main():
    rng = np.random.RandomState(3)
    n = jax.device_count()
    params = {
        "in": rng.normal(size=(5, 8)).astype(np.float32) / 2,
        "out": rng.normal(size=(8, 3)).astype(np.float32) / 2,
    }
    params_repl = jax.device_put_replicated(params, jax.devices())
    p_train_step = jax.pmap(
        partial(train_step, pieces=MICRO_BATCHES),
        axis_name="batch",
        in_axes=(0, 0, None),
        donate_argnums=(0,),
    )
    losses, clips = [], []
    for step in range(4):
        batch = {
            "x": rng.normal(size=(n, 8, 5)).astype(np.float32),
            "y": rng.randint(0, 3, size=(n, 8)),
        }
        lr = 0.3 / (1 + step)
        params_repl, loss, clip = p_train_step(params_repl, batch, lr)
        losses.append(np.asarray(loss))
        clips.append(np.asarray(clip))
    print("losses", [float(loss[0]) for loss in losses])
    params = jax.tree.map(lambda p: np.asarray(p[0]), params_repl)
    return {"losses": np.stack(losses), "clips": np.stack(clips), "params": params}


if __name__ == "__main__":
    main()
