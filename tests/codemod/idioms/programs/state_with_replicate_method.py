"""A train state that replicates itself and gives every device a dropout key of its own."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "moment", "noise_key"],
    meta_fields=["rate"],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: Any
    params: Any
    moment: Any
    noise_key: Any
    rate: float

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def descend(self, grads, **changes):
        moment = jax.tree.map(lambda m, g: 0.5 * m + g, self.moment, grads)
        params = jax.tree.map(lambda p, m: p - self.rate * m, self.params, moment)
        return self.replace(step=self.step + 1, params=params, moment=moment, **changes)

    def on_devices(self):
        state = jax.device_put_replicated(self, jax.local_devices())
        return state.replace(noise_key=key_for_each(self.noise_key))


def key_for_each(key):
    return jax.random.split(key, jax.local_device_count())


def by_device(xs):
    n = jax.local_device_count()
    return jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), xs)


def collected(measured):
    """Takes the metrics of the first device of every step and stacks them."""
    measured = jax.tree.map(lambda x: x[0], measured)
    fetched = jax.device_get(measured)
    return jax.tree.map(lambda *args: np.stack(args), *fetched)


def update(state, batch):
    now, later = jax.random.split(state.noise_key)

    def loss_fn(params):
        keep = jax.random.bernoulli(now, 0.75, batch["inputs"].shape)
        logits = jnp.where(keep, batch["inputs"], 0) @ params["kernel"] + params["bias"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], axis=1)
        return -jnp.mean(picked)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, axis_name="examples")
    new_state = state.descend(grads, noise_key=later)
    return new_state, jax.lax.pmean({"loss": loss, "step": state.step}, axis_name="examples")


def score(params, batch):
    predicted = jnp.argmax(batch["inputs"] @ params["kernel"] + params["bias"], -1)
    return jax.lax.pmean({"accuracy": jnp.mean(predicted == batch["labels"])}, axis_name="examples")


def batches(seed, steps, batch_size):
    rng = np.random.RandomState(seed)
    for _ in range(steps):
        labels = rng.randint(0, 3, size=batch_size)
        inputs = rng.normal(size=(batch_size, 4)) + labels[:, None]
        yield by_device({"inputs": inputs.astype(np.float32), "labels": labels})


def main():
    params = {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}
    state = TrainState(
        step=np.float32(0),
        params=params,
        moment=jax.tree.map(np.zeros_like, params),
        noise_key=jax.random.PRNGKey(0),
        rate=0.5,
    )
    p_update = jax.pmap(update, "examples", donate_argnums=0)
    p_score = jax.pmap(score, "examples")
    state = state.on_devices()
    logs = []
    for batch in batches(0, steps=4, batch_size=32):
        state, measured = p_update(state, batch)
        logs.append(measured)
    logs = collected(logs)
    scores = [p_score(state.params, batch) for batch in batches(1, steps=2, batch_size=64)]
    scores = jax.tree.map(np.mean, collected(scores))
    print(logs, scores)
    saved = jax.device_get(jax.tree.map(lambda x: x[0], state.params))
    return {"train": logs, "eval": scores, "params": saved}


if __name__ == "__main__":
    main()
