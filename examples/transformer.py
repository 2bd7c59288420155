"""A small transformer on two axes: batches over "data", heads and hidden units over "model".

A pmap over "data" of a pmap over "model" is one program on a mesh with both axes. The attention
heads and the feed-forward layer are sharded along "model": each device holds a part of the weights,
and partial results are summed. The other weights are replicated. Gradients are averaged over
"data". The loss of the first steps is compared with the same model on one device.
"""

import argparse
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pmapx

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, LAYERS = 16, 24, 32, 4, 64, 1
RATE = 0.5

# Under pmap, each device differentiates its own copy of the loss. Where copies come together or
# part, the backward pass has to say so once: these two are the transposes of each other.


@jax.custom_vjp
def spread(x: jax.Array) -> jax.Array:
    """The identity; the gradients of all devices of "model" are summed."""
    return x


spread.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "model"),))


@jax.custom_vjp
def summed(x: jax.Array) -> jax.Array:
    """The sum over "model"; the gradient is passed to each device unchanged."""
    return lax.psum(x, "model")


summed.defvjp(lambda x: (lax.psum(x, "model"), None), lambda _, g: (g,))


def init(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    return {
        # Sharded along "model": the sharded axis comes first.
        "sharded": [
            {
                "qkv": normal(HEADS, WIDTH, 3 * WIDTH // HEADS),
                "out": normal(HEADS, WIDTH // HEADS, WIDTH),
                "up": normal(HIDDEN, WIDTH, 1),
                "down": normal(HIDDEN, 1, WIDTH) / np.float32(np.sqrt(HIDDEN)),
            }
            for _ in range(LAYERS)
        ],
        # The same on all devices.
        "replicated": {"tokens": normal(VOCABULARY, WIDTH), "places": normal(LENGTH, WIDTH)},
    }


def attention(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    q, k, v = jnp.split(jnp.einsum("btw,hwd->bhtd", x, layer["qkv"]), 3, axis=-1)
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhts,bhsd,hdw->btw", jax.nn.softmax(scores), v, layer["out"])


def feed_forward(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(jnp.einsum("btw,fwo->btf", x, layer["up"]))
    return jnp.einsum("btf,fow->btw", hidden, layer["down"])


def normed(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def loss(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """The cross entropy of the next token, with this device's heads and hidden units."""
    weights = params["replicated"]
    x = weights["tokens"][tokens[:, :-1]] + weights["places"][: tokens.shape[1] - 1]
    for layer in params["sharded"]:
        x = x + summed(attention(layer, spread(normed(x))))
        x = x + summed(feed_forward(layer, spread(normed(x))))
    logits = normed(x) @ weights["tokens"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -jnp.mean(chosen)


def step(params: dict[str, Any], tokens: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    value, gradient = jax.value_and_grad(loss)(params, tokens)
    gradient, value = lax.pmean((gradient, value), "data")
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), value


def mapped_step(model: int) -> Any:
    """The step over both axes; each device of "model" has its shard of the sharded weights."""
    axes = {"sharded": 0, "replicated": None}
    inner = pmapx.pmap(step, axis_name="model", in_axes=(axes, None), out_axes=(axes, None))
    return pmapx.pmap(inner, axis_name="data", in_axes=(None, 0), out_axes=None, donate_argnums=0)


def shard_weights(params: dict[str, Any], parts: int) -> dict[str, Any]:
    """The sharded weights as (parts, ...), for a map over their first axis."""
    split = lambda w: w.reshape(parts, w.shape[0] // parts, *w.shape[1:])
    return {"sharded": jax.tree.map(split, params["sharded"]), "replicated": params["replicated"]}


def batch(random: np.random.Generator, rows: int) -> np.ndarray:
    """Sequences that repeat themselves every 3 to 5 tokens: attention has to find the period."""
    periods = random.integers(3, 6, size=rows)
    motifs = random.integers(VOCABULARY, size=(rows, 5))
    return np.stack(
        [motif[np.arange(LENGTH) % p] for motif, p in zip(motifs, periods, strict=True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=int, default=2, help="devices for one model (%(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="examples per model (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if jax.device_count() % options.model:
        parser.error(f"{options.model} does not divide {jax.device_count()} devices")
    data = jax.device_count() // options.model

    random = np.random.default_rng(0)
    batches = [
        batch(random, data * options.batch_size).reshape(data, options.batch_size, LENGTH)
        for _ in range(options.steps)
    ]
    train = mapped_step(options.model)
    params, losses = shard_weights(init(0), options.model), []
    for tokens in batches:
        params, value = train(params, tokens)
        losses.append(float(value))

    # The same on one device: both axes are batches of size 1 there.
    alone = jax.jit(jax.vmap(jax.vmap(step, axis_name="model"), axis_name="data"))
    single = jax.tree.map(lambda w: np.asarray(w)[None, None], init(0))
    for k in range(3):
        single, value = alone(single, batches[k].reshape(1, 1, -1, LENGTH))
        difference = abs(float(value[0, 0]) - losses[k])
        assert difference < 1e-3, f"step {k} differs from one device by {difference}"

    print(f"{data} x {options.model} devices, {options.steps} steps")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the first steps agree with one device")
    assert losses[-1] < 0.7 * losses[0], "the transformer did not learn"


if __name__ == "__main__":
    main()
