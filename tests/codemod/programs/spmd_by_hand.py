"""SPMD training by hand: a shape prefix splits batches, a lambda broadcasts the parameters."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import grad, lax, pmap
from jax.tree_util import tree_map


def init_layers(sizes, rng):
    return [
        (0.3 * rng.normal(size=(m, n)).astype("f"), np.zeros(n, "f"))
        for m, n in itertools.pairwise(sizes)
    ]


def predict(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def loss(layers, batch):
    x, y = batch
    return jnp.mean((predict(layers, x) - y) ** 2)


def main():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, 5)).astype("f")
    targets = np.sin(inputs.sum(1, keepdims=True))
    count = jax.device_count()

    def stream():
        while True:
            chosen = rng.permutation(64)[:32]
            x, y = inputs[chosen], targets[chosen]
            per_device, left = divmod(x.shape[0], count)
            if left:
                raise ValueError(f"{x.shape[0]} examples for {count} devices")
            prefix = (count, per_device)
            x = x.reshape(prefix + x.shape[1:])
            y = y.reshape(prefix + y.shape[1:])
            yield x, y

    batches = stream()

    @partial(pmap, axis_name="batch")
    def update(layers, batch):
        grads = grad(loss)(layers, batch)
        grads = [(lax.psum(dw, "batch"), lax.psum(db, "batch")) for dw, db in grads]
        return [
            (w - 0.01 * dw, b - 0.01 * db) for (w, b), (dw, db) in zip(layers, grads, strict=True)
        ]

    replicate = lambda x: np.broadcast_to(x, (count,) + x.shape)
    layers = tree_map(replicate, init_layers([5, 8, 1], rng))
    losses = []
    for _ in range(3):
        for _ in range(4):
            layers = update(layers, next(batches))
        first = tree_map(lambda x: x[0], layers)
        losses.append(loss(first, (inputs, targets)))
    return {"losses": losses, "layers": tree_map(lambda x: x[0], layers)}


if __name__ == "__main__":
    print(main())
