"""Steps compiled ahead of time, kept in a dictionary and called with an unpacked carry."""

import jax
import jax.numpy as jnp
import numpy as np


def update(params, momentum, x, y):
    def loss_fn(params):
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="d")
    momentum = jax.tree.map(lambda m, g: 0.5 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
    return params, momentum, loss


def accuracy(params, x, y):
    hits = jnp.sum(jnp.sign(x @ params["w"] + params["b"]) == jnp.sign(y))
    return jax.lax.psum(hits, axis_name="d")


STEPS = {
    "train": jax.pmap(update, axis_name="d", donate_argnums=(0, 1)),
    "eval": jax.pmap(accuracy, axis_name="d"),
}


def compile_all(**arguments):
    compiled = {}
    for name, step in STEPS.items():
        lowered = step.lower(*arguments[name])
        compiled[name] = lowered.compile()
        print(name, len(lowered.as_text()) > 0)
    return compiled


def batches(count, n_devices):
    rng = np.random.RandomState(0)
    for _ in range(count):
        x = rng.normal(size=(64, 5)).astype(np.float32)
        y = (x[:, 0] - x[:, 3]).astype(np.float32)
        yield tuple(np.stack(np.split(part, n_devices)) for part in (x, y))


def main():
    n = jax.local_device_count()
    params = {"w": np.linspace(-1, 1, 5, dtype=np.float32), "b": np.float32(0)}
    carry = (params, jax.tree.map(np.zeros_like, params))
    carry = jax.tree.map(lambda x: jnp.array([x] * n), carry)
    # A compiled map takes arrays that are placed as it was lowered for.
    place = jax.pmap(lambda *args: args)
    sample = place(*next(batches(1, n)))
    carry = place(*carry)
    steps = compile_all(train=(*carry, *sample), eval=(carry[0], *sample))
    history = []
    for batch in batches(4, n):
        batch = place(*batch)
        *carry, loss = steps["train"](*carry, *batch)
        history.append((float(loss[0]), int(steps["eval"](carry[0], *batch)[0])))
    print(history)
    return {"history": history, "params": jax.tree.map(lambda x: np.asarray(x)[0], carry[0])}


if __name__ == "__main__":
    main()
