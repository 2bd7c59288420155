# jit: train_step
# Equinox: the arrays of a model are the state, and its other leaves are closed over.
import equinox as eqx
import jax
import numpy as np
import optax

model = eqx.nn.MLP(4, 3, 32, 2, key=jax.random.key(0))
params, static = eqx.partition(model, eqx.is_array)
optimizer = optax.adam(1e-2)


def loss_fn(params, x, y):
    model = eqx.combine(params, static)
    logits = jax.vmap(model)(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="data")
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(params, updates), opt_state, loss


def main():
    rng = np.random.default_rng(0)
    n = jax.local_device_count()
    step = jax.pmap(train_step, axis_name="data", donate_argnums=(0, 1))
    state = jax.device_put_replicated(params, jax.local_devices())
    opt_state = jax.device_put_replicated(optimizer.init(params), jax.local_devices())
    for _ in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        y = rng.integers(0, 3, size=(32,))
        state, opt_state, loss = step(state, opt_state, x.reshape((n, -1, 4)), y.reshape((n, -1)))
        print("loss", float(loss[0]))


if __name__ == "__main__":
    main()
