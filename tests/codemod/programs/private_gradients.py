"""Differentially private SGD: gradients of single examples, clipped, summed, with noise."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

CLIP, NOISE = 1.0, 0.3


class PrivateTrainer:
    def __init__(self, loss_fn, learning_rate):
        self._loss_fn = loss_fn
        self._learning_rate = learning_rate
        self.update_pmapped = jax.pmap(
            self._update, axis_name="dp", in_axes=(0, 0, None), out_axes=0, donate_argnums=(0,)
        )

    def _clipped(self, params, example):
        loss, grads = jax.value_and_grad(self._loss_fn)(params, example)
        flat, unravel = ravel_pytree(grads)
        norm = jnp.linalg.norm(flat)
        return loss, unravel(flat * jnp.minimum(1.0, CLIP / (norm + 1e-9))), norm

    def _update(self, params, batch, key):
        losses, grads, norms = jax.vmap(self._clipped, in_axes=(None, 0))(params, batch)
        total = jax.lax.psum(jax.tree.map(lambda g: g.sum(0), grads), "dp")
        count = jax.lax.psum(losses.size, "dp")
        leaves, treedef = jax.tree.flatten(total)
        # One key for all devices: noise is added once, not once a device.
        keys = jax.random.split(key, len(leaves))
        noisy = [
            (g + NOISE * CLIP * jax.random.normal(k, g.shape)) / count
            for g, k in zip(leaves, keys, strict=True)
        ]
        params = jax.tree.map(
            lambda p, g: p - self._learning_rate * g, params, treedef.unflatten(noisy)
        )
        stats = {"loss": losses.mean(), "clipped": jnp.mean(norms > CLIP)}
        return params, jax.lax.pmean(stats, "dp")


def loss_fn(params, example):
    x, y = example
    logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
    return -jax.nn.log_softmax(logits)[y]


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    params = {
        "hidden": rng.normal(size=(4, 6)).astype(np.float32),
        "out": rng.normal(size=(6, 3)).astype(np.float32),
    }
    trainer = PrivateTrainer(loss_fn, learning_rate=0.5)
    params = jax.device_put_replicated(params, jax.local_devices())
    log = []
    for step in range(3):
        batch = (
            rng.normal(size=(n, 5, 4)).astype(np.float32),
            rng.randint(0, 3, size=(n, 5)),
        )
        params, stats = trainer.update_pmapped(params, batch, jax.random.PRNGKey(step))
        log.append({name: float(value[0]) for name, value in stats.items()})
    print(log)
    rows = np.asarray(params["out"])
    assert (rows == rows[0]).all()
    return {"log": log, "out": rows[0]}


if __name__ == "__main__":
    main()
