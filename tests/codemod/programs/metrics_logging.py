"""Metrics of many steps kept on the devices, fetched together and summarised now and then."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np


class Accumulator:
    """Collects what steps report; reads it only when asked."""

    def __init__(self):
        self._pending = []

    def append(self, metrics):
        self._pending.append(metrics)

    def summary(self):
        # One replica is enough: the sums are over all devices.
        first = [jax.tree.map(lambda x: x[0], metrics) for metrics in self._pending]
        stacked = stack_forest(jax.device_get(first))
        self._pending.clear()
        sums = jax.tree.map(np.sum, stacked)
        denominator = sums.pop("denominator")
        return {name: value / denominator for name, value in sums.items()}


def stack_forest(forest):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *forest)


def compute_metrics(logits, labels, weights):
    log_probs = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    metrics = {
        "loss": jnp.sum(nll * weights),
        "accuracy": jnp.sum((logits.argmax(-1) == labels) * weights),
        "denominator": weights.sum(),
    }
    return jax.lax.psum(metrics, axis_name="batch")


@functools.partial(jax.pmap, axis_name="batch")
def step(w, tokens, labels):
    weights = jnp.where(labels > 0, 1.0, 0.0)

    def loss_fn(w):
        logits = w[tokens]
        nll = -jax.nn.log_softmax(logits)[jnp.arange(labels.size), labels]
        return jnp.sum(nll * weights), logits

    (_, logits), grad = jax.value_and_grad(loss_fn, has_aux=True)(w)
    total = jax.lax.psum(weights.sum(), "batch")
    w = w - jax.lax.psum(grad, "batch") / jnp.maximum(total, 1.0)
    return w, compute_metrics(logits, labels, weights)


def main():
    n, vocabulary = jax.local_device_count(), 7
    rng = np.random.RandomState(0)
    w = jax.device_put_replicated(np.zeros((vocabulary, vocabulary), np.float32), jax.devices())
    accumulator = Accumulator()
    summaries = []
    for number in range(6):
        tokens = rng.randint(0, vocabulary, size=(n, 9))
        labels = (3 * tokens + 1) % vocabulary
        w, metrics = step(w, tokens, labels)
        accumulator.append(metrics)
        if number % 3 == 2:
            summaries.append(accumulator.summary())
            print(number, summaries[-1])
    fetched = jax.device_get(w)
    drift = functools.reduce(operator.add, (np.abs(row - fetched[0]).sum() for row in fetched))
    return {"summaries": summaries, "w": fetched[0], "drift": drift}


if __name__ == "__main__":
    main()
