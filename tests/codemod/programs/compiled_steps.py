"""Maps in a dictionary, called with an unpacked carry; one of them is compiled ahead of time."""

import jax
import jax.numpy as jnp
import numpy as np


def update(params, momentum, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] - y) ** 2))(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="d")
    momentum = jax.tree.map(lambda m, g: 0.5 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return params, momentum, loss


def correct(params, x, y):
    hits = jnp.sum(jnp.sign(x @ params["w"]) == jnp.sign(y))
    return jax.lax.psum(hits, axis_name="d")


def residuals(x, y):
    return x.sum(-1) - jax.lax.pmean(y.mean(), "d")


def batches(count):
    rng = np.random.RandomState(0)
    n = jax.local_device_count()
    for _ in range(count):
        x = rng.normal(size=(64, 5)).astype(np.float32)
        y = (x[:, 0] - x[:, 3]).astype(np.float32)
        yield x.reshape((n, -1, 5)), y.reshape((n, -1))


def main():
    steps = {
        "train": jax.pmap(update, axis_name="d", donate_argnums=(0, 1)),
        "eval": jax.pmap(correct, axis_name="d"),
    }
    params = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}
    momentum = jax.tree.map(np.zeros_like, params)
    params, momentum = jax.device_put_replicated((params, momentum), jax.local_devices())
    carry = (params, momentum)
    x, y = next(batches(1))
    correct_ahead = steps["eval"].lower(carry[0], x, y).compile()
    # Lowered for shapes alone: stays as it is.
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (x, y)]
    lowered = jax.pmap(residuals, axis_name="d").lower(*shapes)
    print(len(lowered.as_text()) > 0)
    history = []
    for x, y in batches(4):
        *carry, loss = steps["train"](*carry, x, y)
        history.append((float(loss[0]), int(correct_ahead(carry[0], x, y)[0])))
    own = lowered.compile()(x, y)
    print(history)
    return {
        "history": history,
        "params": jax.tree.map(lambda v: np.asarray(v)[0], carry[0]),
        "residuals": np.asarray(own).reshape(-1),
    }


if __name__ == "__main__":
    main()
