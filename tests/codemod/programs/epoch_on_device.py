"""A whole epoch in one call: a scan over steps inside the map, data kept on the devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class TrainState:
    step: jax.Array
    params: dict
    key: jax.Array

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def tree_flatten(self):
        return (self.step, self.params, self.key), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def schedule(step, warmup=3):
    return 0.2 * jnp.minimum(1.0, (step + 1) / warmup) * 0.95**step


def epoch(state, x, y, batch_size):
    """Shuffles this device's part, then one step a batch."""
    key, shuffle_key = jax.random.split(state.key)
    order = jax.random.permutation(shuffle_key, x.shape[0])
    n_batches = x.shape[0] // batch_size
    order = order[: n_batches * batch_size].reshape(n_batches, batch_size)

    def train_step(state, index):
        def loss_fn(params):
            return jnp.mean((x[index] @ params["w"] + params["b"] - y[index]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        loss, grads = jax.lax.pmean((loss, grads), "devices")
        lr = schedule(state.step)
        params = jax.tree.map(lambda p, g: p - lr * g, state.params, grads)
        return state.replace(step=state.step + 1, params=params), loss

    state, losses = jax.lax.scan(train_step, state.replace(key=key), order)
    return state, losses


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    x = rng.normal(size=(n, 12, 3)).astype(np.float32)
    y = x @ np.array([1.0, 2.0, 3.0], np.float32) - 1.0
    run_epoch = jax.pmap(
        epoch, axis_name="devices", static_broadcasted_argnums=(3,), donate_argnums=(0,)
    )
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    keys = jax.random.split(jax.random.PRNGKey(0), n)
    state = TrainState(
        step=jnp.zeros(n, jnp.int32),
        params=jax.tree.map(lambda p: jnp.stack([p] * n), params),
        key=keys,
    )
    x, y = (jax.device_put_sharded(list(a), jax.local_devices()) for a in (x, y))
    curve = []
    for _ in range(2):
        state, losses = run_epoch(state, x, y, 4)
        curve.append(np.asarray(losses[0]))
    curve = np.concatenate(curve)
    print("curve", curve)
    return {
        "curve": curve,
        "step": int(state.step[0]),
        "w": np.asarray(state.params["w"][0]),
        "keys": np.asarray(state.key),
    }


if __name__ == "__main__":
    main()
