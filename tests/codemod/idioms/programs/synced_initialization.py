"""Devices initialize from keys of their own and take over the state of the first."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


class Keys:
    """A source of new keys, one at a time or some together."""

    def __init__(self, key):
        self._key = key

    def one(self):
        return self.some(1)[0]

    def some(self, count):
        self._key, *new = jax.random.split(self._key, 1 + count)
        return new


@functools.partial(jax.pmap, axis_name="dp")
def take_over_the_first(state):
    is_first = jax.lax.axis_index("dp") == 0
    return jax.lax.psum(jax.tree.map(lambda leaf: leaf * is_first, state), "dp")


@jax.pmap
def initialize(key):
    encoder_key, decoder_key = Keys(key).some(2)
    encoder = jax.random.normal(encoder_key, (6, 3))
    decoder = jax.random.normal(decoder_key, (3, 6))
    return {"encoder": encoder, "decoder": decoder, "step": jnp.int32(0)}


def fetched(metrics, is_stacked=False, stack=False):
    if is_stacked:
        metrics = jax.tree.map(lambda x: x[0], metrics)
    if stack:
        return jax.tree.map(lambda *steps: np.stack(steps), *jax.device_get(metrics))
    return {name: float(value) for name, value in metrics.items()}


def loss_fn(state, images, key):
    mask = jax.random.bernoulli(key, 0.5, images.shape)
    code = jnp.tanh(jnp.where(mask, images, 0) @ state["encoder"])
    return jnp.mean((code @ state["decoder"] - images) ** 2), mask.mean()


@functools.partial(jax.pmap, axis_name="dp", donate_argnums=0)
def update(state, key, images):
    keys = Keys(key)
    weights = {name: state[name] for name in ("encoder", "decoder")}
    cost_and_grads = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, ratio), grads = cost_and_grads(weights, images, keys.one())
    grads, metrics = jax.lax.pmean((grads, {"loss": loss, "ratio": ratio}), axis_name="dp")
    weights = jax.tree.map(lambda p, g: p - 0.1 * g, weights, grads)
    return {**weights, "step": state["step"] + 1}, keys.one(), metrics


def main():
    n = jax.local_device_count()
    source = Keys(jax.random.PRNGKey(5))
    state = take_over_the_first(initialize(jnp.stack(source.some(n))))
    own_keys = jax.device_put_sharded(source.some(n), jax.local_devices())
    rng = np.random.RandomState(0)
    metrics = []
    for _ in range(4):
        images = rng.normal(size=(32, 6)).astype(np.float32)
        images = images.reshape(n, -1, *images.shape[1:])
        state, own_keys, step_metrics = update(state, own_keys, images)
        metrics.append(step_metrics)
    last = fetched(metrics[-1], is_stacked=True)
    every = fetched([jax.tree.map(lambda x: x[0], m) for m in metrics], stack=True)
    print(last)
    final = jax.device_get(jax.tree.map(lambda x: x[0], state))
    return {"last": last, "every": every, "state": final, "keys": np.asarray(own_keys)}


if __name__ == "__main__":
    main()
