"""Several steps a call: a map of a scan, its carry a key a device and a replicated state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SUBSTEPS = 3


class State(NamedTuple):
    step: Any
    params: Any
    average: Any


def dataset(per_device_batch):
    """Batches of (devices, substeps, examples, features), as nested batching makes them."""
    rng = np.random.RandomState(0)
    batch_dims = [jax.local_device_count(), SUBSTEPS, per_device_batch]
    while True:
        x = rng.normal(size=(int(np.prod(batch_dims)), 2)).astype(np.float32)
        for size in reversed(batch_dims[1:]):
            x = x.reshape((-1, size) + x.shape[1:])
        yield {"image": x}


def make_body(is_training):
    def loss_fn(params, key, image):
        noise_key, time_key = jax.random.split(key)
        t = jax.random.uniform(time_key, (image.shape[0], 1))
        z = jax.random.normal(noise_key, image.shape)
        score = (image + t * z) @ params["w"] + params["b"]
        return jnp.mean((score * t + z) ** 2)

    def body(carry, batch):
        key, state = carry
        key, now = jax.random.split(key, 2)
        if is_training:
            both = jax.value_and_grad(loss_fn)(state.params, now, batch["image"])
            loss, grads = jax.lax.pmean(both, axis_name="batch")
            params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
            average = jax.tree.map(lambda e, p: 0.75 * e + 0.25 * p, state.average, params)
            state = State(state.step + 1, params, average)
        else:
            loss = jax.lax.pmean(loss_fn(state.average, now, batch["image"]), "batch")
        return (key, state), loss

    return body


def main():
    params = {"w": np.eye(2, dtype=np.float32) / 4, "b": np.zeros(2, np.float32)}
    state = State(np.int32(0), params, params)
    train = jax.pmap(
        functools.partial(jax.lax.scan, make_body(is_training=True)), axis_name="batch"
    )
    evaluate = jax.pmap(
        functools.partial(jax.lax.scan, make_body(is_training=False)), axis_name="batch"
    )
    state = jax.device_put_replicated(state, jax.local_devices())
    train_data, eval_data = dataset(4), dataset(2)
    key = jax.random.PRNGKey(4)
    losses = []
    for _ in range(2):
        key, *keys = jax.random.split(key, 1 + jax.local_device_count())
        (_, state), loss = train((jnp.stack(keys), state), next(train_data))
        losses.append(float(loss[0].mean()))
    key, *keys = jax.random.split(key, 1 + jax.local_device_count())
    _, eval_loss = evaluate((jnp.stack(keys), state), next(eval_data))
    state = jax.tree.map(lambda x: np.asarray(x[0]), state)
    print("step", state.step, "losses", losses)
    return {"losses": losses, "eval": np.asarray(eval_loss[0]), "state": state}


if __name__ == "__main__":
    main()
