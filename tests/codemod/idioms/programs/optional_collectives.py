"""Steps that are mapped or only jitted by a flag; an identity map places data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "parts"


def is_mapped():
    try:
        jax.lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def average(tree):
    """The mean over devices, or the tree itself outside of a map."""
    return jax.lax.pmean(tree, AXIS) if is_mapped() else tree


over_devices = functools.partial(jax.pmap, axis_name=AXIS)
place = over_devices(lambda leaf: leaf)


def copies(tree):
    count = jax.local_device_count()
    return place(jax.tree.map(lambda leaf: jnp.stack(count * [leaf]), tree))


def parts(tree):
    count = jax.local_device_count()
    return place(jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), tree))


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def make_update(rate, is_parallel=True):
    def update(params, x, y):
        def loss_fn(params):
            return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        loss, grads = average((loss, grads))
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss

    if not is_parallel:
        return jax.jit(update)
    mapped = over_devices(update, donate_argnums=(0,))

    def update_with_one_loss(params, x, y):
        params, loss = mapped(params, x, y)
        return params, first(loss)

    return update_with_one_loss


def train(is_parallel):
    rng = np.random.RandomState(0)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    y = np.sin(x.sum(1))
    params = {"w": np.full(3, 0.5, np.float32), "b": np.float32(0.25)}
    if is_parallel:
        params, (x, y) = copies(params), parts((x, y))
    update = make_update(0.25, is_parallel)
    losses = []
    for _ in range(4):
        params, loss = update(params, x, y)
        losses.append(float(loss))
    return losses, jax.device_get(first(params) if is_parallel else params)


def main():
    losses, params = train(is_parallel=True)
    alone, _ = train(is_parallel=False)
    print("losses", losses, "on one device", alone)
    assert np.allclose(losses, alone)
    return {"losses": losses, "params": params, "alone": alone}


if __name__ == "__main__":
    main()
