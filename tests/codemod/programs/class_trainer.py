"""A trainer class that maps its own methods, as experiment frameworks have it."""

import jax
import jax.numpy as jnp
import numpy as np


class Dataset:
    """Batches of two clouds of points, one part a device."""

    def __init__(self, seed, batch_size):
        self._rng = np.random.RandomState(seed)
        self._per_device = batch_size // jax.local_device_count()

    def __iter__(self):
        return self

    def __next__(self):
        shape = (jax.local_device_count(), self._per_device)
        labels = self._rng.randint(0, 2, size=shape)
        points = self._rng.normal(size=(*shape, 2)) + 2.0 * labels[..., None]
        return {"points": points.astype(np.float32), "labels": labels.astype(np.int32)}


class Trainer:
    AXIS = "i"

    def __init__(self, learning_rate, momentum=0.9):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self._params = None
        self._velocity = None
        self._update = jax.pmap(self._update_fn, axis_name=self.AXIS, donate_argnums=(0, 1))
        self._accuracy = jax.pmap(self._accuracy_fn, axis_name="eval")

    def initialize(self, key):
        params = {"w": 0.1 * jax.random.normal(key, (2, 2)), "b": jnp.zeros(2)}
        velocity = jax.tree.map(jnp.zeros_like, params)
        devices = jax.local_devices()
        self._params = jax.device_put_replicated(params, devices)
        self._velocity = jax.device_put_replicated(velocity, devices)

    def _loss_fn(self, params, batch):
        logits = batch["points"] @ params["w"] + params["b"]
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, batch["labels"][:, None], axis=1)
        return -jnp.mean(picked)

    def _update_fn(self, params, velocity, batch):
        loss, grads = jax.value_and_grad(self._loss_fn)(params, batch)
        grads = jax.lax.pmean(grads, self.AXIS)
        velocity = jax.tree.map(lambda v, g: self.momentum * v + g, velocity, grads)
        params = jax.tree.map(lambda p, v: p - self.learning_rate * v, params, velocity)
        scalars = {"loss": loss, "grad_norm": jnp.sqrt(sum(jnp.vdot(g, g) for g in grads.values()))}
        return params, velocity, jax.lax.pmean(scalars, self.AXIS)

    def _accuracy_fn(self, params, batch):
        logits = batch["points"] @ params["w"] + params["b"]
        hits = jnp.sum(jnp.argmax(logits, -1) == batch["labels"])
        return jax.lax.psum(hits, "eval"), jax.lax.psum(batch["labels"].size, "eval")

    def step(self, batch):
        self._params, self._velocity, scalars = self._update(self._params, self._velocity, batch)
        return jax.tree.map(lambda s: float(s[0]), scalars)

    def evaluate(self, batches):
        hits = total = 0
        for batch in batches:
            batch_hits, batch_total = self._accuracy(self._params, batch)
            hits += int(batch_hits[0])
            total += int(batch_total[0])
        return hits / total

    def params(self):
        return jax.tree.map(lambda x: np.asarray(x[0]), self._params)


def main():
    trainer = Trainer(learning_rate=0.1)
    trainer.initialize(jax.random.PRNGKey(42))
    data = iter(Dataset(seed=1, batch_size=64))
    logs = [trainer.step(next(data)) for _ in range(5)]
    for log in logs:
        print({name: round(value, 5) for name, value in log.items()})
    held_out = Dataset(seed=2, batch_size=64)
    accuracy = trainer.evaluate([next(held_out) for _ in range(2)])
    print("accuracy", accuracy)
    return {"logs": logs, "params": trainer.params(), "accuracy": accuracy}


if __name__ == "__main__":
    main()
