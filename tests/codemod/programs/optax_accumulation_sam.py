"""optax.MultiSteps inside the map, and a sharpness-aware step that takes two gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def predict(params, x):
    return jnp.squeeze(jax.nn.silu(x @ params["w1"]) @ params["w2"], -1)


def loss_fn(params, x, y):
    return jnp.mean(optax.huber_loss(predict(params, x), y))


class Trainer:
    """Keeps its stacked state as attributes; subclasses say what a step is."""

    axis_name = "batch"

    def __init__(self, params, tx):
        self.tx = tx
        n = jax.local_device_count()
        state = {"params": params, "opt_state": tx.init(params)}
        self.state = jax.tree.map(lambda x: jnp.stack([x] * n), state)
        self.losses = []
        self._pmapped_step = jax.pmap(self.step, axis_name=self.axis_name)

    def gradient(self, params, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return jax.lax.pmean((loss, grads), self.axis_name)

    def step(self, state, x, y):
        loss, grads = self.gradient(state["params"], x, y)
        updates, opt_state = self.tx.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state}, loss

    def fit(self, batches):
        for x, y in batches:
            self.state, loss = self._pmapped_step(self.state, x, y)
            self.losses.append(float(loss[0]))
        return jax.tree.map(lambda x: np.asarray(x[0]), self.state["params"])


class SharpnessAware(Trainer):
    axis_name = "sam"

    def gradient(self, params, x, y):
        _, grads = super().gradient(params, x, y)
        norm = optax.global_norm(grads)
        climbed = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, grads)
        return super().gradient(climbed, x, y)


def batches(count):
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    for _ in range(count):
        x = rng.normal(size=(n, 4, 3)).astype(np.float32)
        yield x, np.abs(x).sum(-1)


def main():
    rng = np.random.RandomState(1)
    params = {
        "w1": rng.normal(size=(3, 6)).astype(np.float32),
        "w2": rng.normal(size=(6, 1)).astype(np.float32) / 2,
    }
    every_second = optax.MultiSteps(optax.adam(0.05), every_k_schedule=2)
    accumulated = Trainer(params, every_second)
    sharp = SharpnessAware(params, optax.sgd(0.1))
    results = {
        "accumulated": accumulated.fit(batches(4)),
        "sharp": sharp.fit(batches(3)),
        "losses": [accumulated.losses, sharp.losses],
    }
    print(results["losses"])
    return results


if __name__ == "__main__":
    main()
