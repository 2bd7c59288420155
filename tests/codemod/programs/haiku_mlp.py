"""A Haiku network with optax, every device with its own key."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax


class TrainingState(NamedTuple):
    params: hk.Params
    avg_params: hk.Params
    opt_state: optax.OptState


def net_fn(x, is_training):
    x = hk.Linear(16)(x)
    x = jax.nn.relu(x)
    if is_training:
        x = hk.dropout(hk.next_rng_key(), 0.1, x)
    return hk.Linear(3)(x)


network = hk.transform(net_fn)
optimiser = optax.adam(1e-2)


def loss(params, rng, x, y):
    logits = network.apply(params, rng, x, is_training=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def update(state, rng, x, y):
    value, grads = jax.value_and_grad(loss)(state.params, rng, x, y)
    grads = jax.lax.pmean(grads, axis_name="i")
    updates, opt_state = optimiser.update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    avg_params = optax.incremental_update(params, state.avg_params, step_size=0.1)
    return TrainingState(params, avg_params, opt_state), jax.lax.pmean(value, axis_name="i")


def accuracy(params, x, y):
    predictions = network.apply(params, None, x, is_training=False).argmax(-1)
    return jax.lax.pmean(jnp.mean(predictions == y), axis_name="i")


def main():
    n = jax.local_device_count()
    key = jax.random.PRNGKey(0)
    params = network.init(key, np.zeros((1, 4), np.float32), is_training=True)
    state = TrainingState(params, params, optimiser.init(params))
    state = jax.device_put_replicated(state, jax.local_devices())
    p_update = jax.pmap(update, axis_name="i", donate_argnums=0)
    p_accuracy = jax.pmap(accuracy, axis_name="i")
    keys = jnp.broadcast_to(key, (n, *key.shape))
    keys = jax.pmap(lambda k: jax.random.fold_in(k, jax.lax.axis_index("i")), axis_name="i")(keys)
    data = np.random.RandomState(0)
    losses = []
    for _ in range(4):
        y = data.randint(0, 3, size=(n, 5))
        x = (data.normal(size=(n, 5, 4)) + y[..., None]).astype(np.float32)
        keys, step_keys = jnp.moveaxis(jax.pmap(jax.random.split)(keys), 1, 0)
        state, value = p_update(state, step_keys, x, y)
        losses.append(float(value[0]))
    result = float(p_accuracy(state.avg_params, x, y)[0])
    print("losses", losses, "accuracy", result)
    first = jax.tree_util.tree_map(lambda p: np.asarray(p[0]), state.params)
    return {"losses": losses, "accuracy": result, "params": first}


if __name__ == "__main__":
    main()
