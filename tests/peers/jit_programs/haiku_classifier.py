# jit: train_step
# Haiku: a network as two functions, and weight decay by optax.
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax


def forward(x):
    return hk.nets.MLP([16, 10])(x)


network = hk.without_apply_rng(hk.transform(forward))
optimizer = optax.adamw(1e-2)


def loss_fn(params, batch):
    logits = network.apply(params, batch["x"])
    labels = jax.nn.one_hot(batch["label"], 10)
    return optax.softmax_cross_entropy(logits, labels).mean()


def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, axis_name="i")
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, jax.lax.pmean(loss, axis_name="i")


def main():
    rng = np.random.default_rng(0)
    n = jax.local_device_count()
    params = network.init(jax.random.PRNGKey(0), jnp.ones((1, 8)))
    opt_state = optimizer.init(params)
    params = jax.device_put_replicated(params, jax.local_devices())
    opt_state = jax.device_put_replicated(opt_state, jax.local_devices())
    step = jax.pmap(train_step, axis_name="i", donate_argnums=(0, 1))
    for _ in range(3):
        batch = {
            "x": rng.normal(size=(32, 8)).astype("float32"),
            "label": rng.integers(0, 10, size=(32,)),
        }
        batch = jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), batch)
        params, opt_state, loss = step(params, opt_state, batch)
        print("loss", float(loss[0]))


if __name__ == "__main__":
    main()
