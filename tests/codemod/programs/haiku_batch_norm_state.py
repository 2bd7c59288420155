"""Haiku with state: batch norm over all devices, in a class that drives the experiment."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax


def forward_fn(batch, is_training):
    x = hk.Conv2D(4, 3)(batch["images"])
    x = hk.BatchNorm(True, True, 0.9, cross_replica_axis="devices")(x, is_training)
    x = jax.nn.relu(x).mean((1, 2))
    return hk.Linear(2)(x)


forward = hk.without_apply_rng(hk.transform_with_state(forward_fn))


def make_optimizer(learning_rate):
    return optax.chain(optax.trace(decay=0.9), optax.scale(-learning_rate))


class Experiment:
    def __init__(self, seed, learning_rate):
        self.opt = make_optimizer(learning_rate)
        batch = self.make_batch(0)
        init = jax.pmap(functools.partial(forward.init, is_training=True), axis_name="devices")
        keys = jnp.stack([jax.random.PRNGKey(seed)] * jax.local_device_count())
        self.params, self.state = init(keys, batch)
        self.opt_state = jax.pmap(self.opt.init)(self.params)
        self._step = jax.pmap(self._step_fn, axis_name="devices", donate_argnums=(0, 1, 2))
        self._eval = jax.pmap(self._eval_fn, axis_name="devices")

    @staticmethod
    def make_batch(seed):
        rng = np.random.RandomState(seed)
        labels = rng.randint(0, 2, size=(jax.local_device_count(), 4))
        images = rng.normal(size=(*labels.shape, 4, 4, 1)) + labels[..., None, None, None]
        return {"images": images.astype(np.float32), "labels": labels}

    def _loss(self, params, state, batch):
        logits, state = forward.apply(params, state, batch, is_training=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses.mean(), (losses.mean(), state)

    def _step_fn(self, params, state, opt_state, batch):
        grads, (loss, state) = jax.grad(self._loss, has_aux=True)(params, state, batch)
        grads = jax.lax.pmean(grads, axis_name="devices")
        updates, opt_state = self.opt.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        return params, state, opt_state, jax.lax.pmean(loss, axis_name="devices")

    def _eval_fn(self, params, state, batch):
        logits, _ = forward.apply(params, state, batch, is_training=False)
        return jax.lax.psum(jnp.sum(logits.argmax(-1) == batch["labels"]), "devices")

    def step(self, number):
        self.params, self.state, self.opt_state, loss = self._step(
            self.params, self.state, self.opt_state, self.make_batch(number)
        )
        return float(loss[0])

    def evaluate(self, number):
        return int(self._eval(self.params, self.state, self.make_batch(number))[0])


def main():
    experiment = Experiment(seed=1, learning_rate=0.1)
    losses = [experiment.step(number) for number in range(3)]
    correct = experiment.evaluate(99)
    print("losses", losses, "correct", correct)
    state = jax.tree.map(lambda x: np.asarray(x[0]), experiment.state)
    return {"losses": losses, "correct": correct, "state": state}


if __name__ == "__main__":
    main()
