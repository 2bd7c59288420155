"""An ensemble of classifiers, one a device, whose predictions are averaged on the host."""

import jax
import jax.numpy as jnp
import numpy as np


def init(key):
    k1, k2 = jax.random.split(key)
    return jax.random.normal(k1, (2, 12)), jax.random.normal(k2, (12, 3)) / 3


def logits_fn(params, x):
    first, last = params
    return jax.nn.gelu(x @ first) @ last


def fit(params, x, y):
    def loss(params):
        return -jnp.mean(jax.nn.log_softmax(logits_fn(params, x))[jnp.arange(len(y)), y])

    def step(_, params):
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(loss)(params))

    params = jax.lax.fori_loop(0, 10, step, params)
    return params, loss(params)


def three_blobs(rng, count):
    y = rng.randint(0, 3, size=count)
    centres = np.array([[0, 2], [2, -1], [-2, -1]])
    return (centres[y] + rng.normal(size=(count, 2))).astype(np.float32), y


def main():
    n_members = jax.local_device_count()
    rng = np.random.RandomState(0)
    x, y = three_blobs(rng, 60)
    keys = jax.random.split(jax.random.PRNGKey(0), n_members)
    params = jax.pmap(init)(keys)
    # Every member sees its own draw of the data.
    picks = rng.randint(0, len(y), size=(n_members, len(y)))
    params, losses = jax.pmap(fit)(params, x[picks], y[picks])

    x_test, y_test = three_blobs(rng, 30)
    predict = jax.pmap(lambda p, x: jax.nn.softmax(logits_fn(p, x)), in_axes=(0, None))
    probabilities = predict(params, x_test)
    mean = np.asarray(probabilities).mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    single = [float((np.asarray(p).argmax(-1) == y_test).mean()) for p in probabilities]
    ensemble = float((mean.argmax(-1) == y_test).mean())
    print(f"single {single}, ensemble {ensemble}")
    return {
        "losses": np.asarray(losses),
        "single": single,
        "ensemble": ensemble,
        "entropy": entropy,
    }


if __name__ == "__main__":
    main()
