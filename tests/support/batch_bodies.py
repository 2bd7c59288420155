"""Mapped bodies as training code has them, and what each is over the global batch.

A device takes `B` examples. `PARALLEL` are functions of the global batch; `BY_DEVICE` are not,
each with the operation that makes it so and a part of the reason.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import tree_map

from pmapx._src.batch_parallel.traces import PER_DEVICE

B, D, H, C = 4, 5, 6, 3
AXIS = "i"


@dataclass(frozen=True)
class Case:
    """A body with arguments of all devices: sharded ones have a leading device axis."""

    name: str
    body: Any
    arguments: Any  # From the number of devices to (arguments, batch axes).
    operation: str = ""
    why: str = ""

    def __repr__(self):
        return self.name


def pmean(x):
    return lax.pmean(x, AXIS)


def psum(x):
    return lax.psum(x, AXIS)


def normal(seed, *shape):
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


def params():
    return {"w": 0.3 * normal(1, D, H), "v": 0.3 * normal(2, H, C), "g": 1 + 0.1 * normal(3, H)}


def labelled(n):
    """Replicated parameters, examples and integer labels."""
    labels = np.random.RandomState(5).randint(0, C, (n, B)).astype(np.int32)
    return (params(), normal(4, n, B, D), labels), (None, 0, 0)


def weighted(n):
    arguments, axes = labelled(n)
    weights = np.random.RandomState(6).randint(0, 2, (n, B)).astype(np.float32)
    weights[:, 0] = 1
    return (*arguments, weights), (*axes, 0)


def with_key(n):
    arguments, axes = labelled(n)
    return (*arguments, jax.random.key(7)), (*axes, None)


def key_per_device(n):
    arguments, axes = labelled(n)
    return (*arguments, jax.random.split(jax.random.key(7), n)), (*axes, PER_DEVICE)


def with_state(n):
    arguments, axes = labelled(n)
    zeros = {"mean": np.zeros(H, np.float32), "ema": params(), "step": np.int32(3)}
    return (*arguments, zeros), (*axes, None)


def images(n):
    kernel, dense = 0.3 * normal(1, 3, 3, 2, 4), 0.3 * normal(2, 4, C)
    labels = np.random.RandomState(5).randint(0, C, (n, B)).astype(np.int32)
    return ({"k": kernel, "d": dense}, normal(4, n, B, 8, 8, 2), labels), (None, 0, 0)


def tokens(n):
    r = np.random.RandomState(5)
    p = {k: 0.3 * normal(i, H, H) for i, k in enumerate("qkvo")}
    p |= {"embed": 0.3 * normal(8, 11, H), "out": 0.3 * normal(9, H, 11)}
    return (p, r.randint(0, 11, (n, B, 7)).astype(np.int32)), (None, 0)


def cross_entropy(logits, labels):
    return -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1]), -1)


def predict(p, x):
    return jnp.tanh(x @ p["w"]) * p["g"] @ p["v"]


def mean_loss(p, x, y):
    return cross_entropy(predict(p, x), y).mean()


def descend(p, grads, rate=0.1):
    return tree_map(lambda a, g: a - rate * g, p, grads)


def train(reduce=pmean, loss=mean_loss):
    def body(p, *batch):
        value, grads = jax.value_and_grad(loss)(p, *batch)
        return descend(p, reduce(grads)), pmean(value)

    return body


def adam(p, x, y, state):
    grads = pmean(jax.grad(mean_loss)(p, x, y))
    step = state["step"] + 1
    m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["ema"], grads)
    update = tree_map(lambda m, g: m / (jnp.sqrt(g * g) + 1e-3) / (1 - 0.9**step), m, grads)
    return descend(p, update), {"ema": m, "step": step}


def clipped_after(p, x, y):
    grads = pmean(jax.grad(mean_loss)(p, x, y))
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return descend(p, tree_map(lambda g: g / jnp.maximum(norm, 1.0), grads))


def clipped_before(p, x, y):
    grads = jax.grad(mean_loss)(p, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return descend(p, pmean(tree_map(lambda g: g / jnp.maximum(norm, 1.0), grads)))


def mixed_precision(p, x, y):
    def loss(p):
        half = tree_map(lambda a: a.astype(jnp.bfloat16), p)
        logits = predict(half, x.astype(jnp.bfloat16)).astype(jnp.float32)
        return 128.0 * cross_entropy(logits, y).mean()

    grads = pmean(tree_map(lambda g: g.astype(jnp.float32) / 128.0, jax.grad(loss)(p)))
    finite = jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]).all()
    return tree_map(lambda a, b: jnp.where(finite, b, a), p, descend(p, grads))


def ema(p, x, y, state):
    new = descend(p, pmean(jax.grad(mean_loss)(p, x, y)))
    return new, tree_map(lambda e, a: 0.99 * e + 0.01 * a, state["ema"], new)


def normalized(reduce):
    def loss(p, x, y):
        h = x @ p["w"]
        mean, square = reduce(h.mean(0)), reduce((h**2).mean(0))
        h = (h - mean) * lax.rsqrt(square - mean**2 + 1e-3) * p["g"]
        return cross_entropy(h @ p["v"], y).mean(), mean

    def body(p, x, y, state):
        (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(p, x, y)
        running = 0.9 * state["mean"] + 0.1 * pmean(mean)
        return descend(p, pmean(grads)), running, pmean(value)

    return body


def scaled_rate(p, x, y):
    grads = psum(jax.grad(mean_loss)(p, x, y))
    return descend(p, grads, 0.1 / lax.psum(1, AXIS))


def sum_over_global_size(p, x, y):
    loss = lambda p: cross_entropy(predict(p, x), y).sum() / (x.shape[0] * lax.axis_size(AXIS))
    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, psum(grads)), psum(value)


def evaluation(p, x, y, w):
    logits = predict(p, x)
    hits = psum(jnp.sum(w * (logits.argmax(-1) == y)))
    return {"accuracy": hits / psum(w.sum()), "loss": psum((w * cross_entropy(logits, y)).sum())}


def weighted_loss(p, x, y, w):
    def loss(p):
        return jnp.sum(w * cross_entropy(predict(p, x), y)) / psum(w.sum())

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, psum(grads)), psum(value)


def masked_mean(p, x, y, w):
    def loss(p):
        return jnp.sum(w * cross_entropy(predict(p, x), y)) / w.sum()

    return descend(p, pmean(jax.grad(loss)(p)))


def integer_labels(p, x, y):
    def loss(p):
        log = jax.nn.log_softmax(predict(p, x))
        return -jnp.take_along_axis(log, y[:, None], axis=1).mean()

    return descend(p, pmean(jax.grad(loss)(p)))


def indexed_labels(p, x, y):
    def loss(p):
        log = jax.nn.log_softmax(predict(p, x))
        return -log[jnp.arange(x.shape[0]), y].mean()

    return descend(p, pmean(jax.grad(loss)(p)))


def convolutional(p, x, y):
    def loss(p):
        h = lax.conv_general_dilated(
            x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = lax.reduce_window(
            jax.nn.relu(h), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return cross_entropy(h.mean((1, 2)) @ p["d"], y).mean()

    return descend(p, pmean(jax.grad(loss)(p)))


def transformer(p, t):
    def loss(p):
        h = p["embed"][t]
        q, k, v = (h @ p[name] for name in "qkv")
        scores = jnp.einsum("bqh,bkh->bqk", q, k) / jnp.sqrt(H)
        causal = jnp.tril(jnp.ones((t.shape[1], t.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        h = h + jnp.einsum("bqk,bkh->bqh", weights, v) @ p["o"]
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
        logits = (h.reshape(-1, H) @ p["out"]).reshape(*t.shape, -1)
        return cross_entropy(logits[:, :-1], t[:, 1:]).mean()

    value, grads = jax.value_and_grad(jax.checkpoint(loss))(p)
    return descend(p, pmean(grads)), pmean(value)


def layers_by_scan(p, x, y):
    def loss(p):
        h, _ = lax.scan(
            lambda h, w: (jnp.tanh(h @ w), None), x @ p["w"], jnp.stack([jnp.eye(H)] * 3)
        )
        return cross_entropy(h @ p["v"], y).mean()

    return descend(p, pmean(jax.grad(loss)(p)))


def accumulated(p, x, y):
    """Two microbatches of the device's examples."""
    xs, ys = (a.reshape(2, -1, *a.shape[1:]) for a in (x, y))

    def step(total, micro):
        value, grads = jax.value_and_grad(mean_loss)(p, *micro)
        return tree_map(jnp.add, total, grads), value

    total, values = lax.scan(step, tree_map(jnp.zeros_like, p), (xs, ys))
    return descend(p, pmean(tree_map(lambda g: g / 2, total))), pmean(values.mean())


def accumulated_by_two(p, x, y):
    """Microbatches of two examples, however many the device has."""
    xs, ys = (a.reshape(-1, 2, *a.shape[1:]) for a in (x, y))

    def step(total, micro):
        return tree_map(jnp.add, total, jax.grad(mean_loss)(p, *micro)), None

    total, _ = lax.scan(step, tree_map(jnp.zeros_like, p), (xs, ys))
    return descend(p, pmean(tree_map(lambda g: g / xs.shape[0], total)))


def gan(p, x, y):
    """Two states, real and generated examples in one batch."""
    fake = jnp.tanh(x @ p["w"]) @ p["w"].T

    def discriminator(v):
        both = jnp.concatenate([x, fake])
        scores = jnp.tanh(both @ p["w"]) @ v
        real, made = jnp.split(scores, 2)
        return jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(made))

    def generator(w):
        return jnp.mean(jax.nn.softplus(-jnp.tanh(jnp.tanh(x @ w) @ w.T @ p["w"]) @ p["v"]))

    v = p["v"] - 0.1 * pmean(jax.grad(discriminator)(p["v"]))
    w = p["w"] - 0.1 * pmean(jax.grad(generator)(p["w"]))
    return v, w


def contrastive(labels_by_device):
    def body(p, x, y):
        def loss(p):
            a, b = x @ p["w"], (x + 0.1) @ p["w"]
            everyone = lax.all_gather(b, AXIS, tiled=True)
            if labels_by_device:
                labels = jnp.arange(x.shape[0]) + lax.axis_index(AXIS) * x.shape[0]
                return cross_entropy(a @ everyone.T, labels).mean()
            return jax.nn.logsumexp(a @ everyone.T, axis=1).mean() - (a * b).sum(1).mean()

        return descend(p, pmean(jax.grad(loss)(p)))

    return body


def gathered(p, x, y):
    everyone = lax.all_gather(x @ p["w"], AXIS).reshape(-1, H)
    return jnp.sort(everyone, axis=0), everyone.std(0)


def noise_of_parameters(p, x, y, key):
    noisy = tree_map(lambda a: a + 0.1 * jax.random.normal(key, a.shape), p)
    return descend(p, pmean(jax.grad(mean_loss)(noisy, x, y))), jax.random.split(key)[0]


def dropout(fold):
    def body(p, x, y, key):
        if fold:
            key = jax.random.fold_in(key, lax.axis_index(AXIS))

        def loss(p):
            h = jnp.tanh(x @ p["w"])
            h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0)
            return cross_entropy(h @ p["v"], y).mean()

        return descend(p, pmean(jax.grad(loss)(p)))

    return body


def dropout_by_example(p, x, y, key):
    """A key for each example, from what it holds."""
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(y)
    masks = jax.vmap(lambda k: jax.random.bernoulli(k, 0.5, (D,)))(keys)
    return descend(p, pmean(jax.grad(mean_loss)(p, jnp.where(masks, x, 0), y)))


def extremes(p, x, y):
    h = x @ p["w"]
    is_finite = lax.pmin(jnp.all(jnp.isfinite(h)).astype(jnp.int32), AXIS)
    return lax.pmax(h.max(), AXIS), lax.pmin(h.min(0), AXIS), is_finite


def conditional(p, x, y, state):
    grads = pmean(jax.grad(mean_loss)(p, x, y))
    return lax.cond(state["step"] % 2 == 1, lambda: descend(p, grads), lambda: p)


def repeated(p, x, y):
    step = lambda _, p: descend(p, pmean(jax.grad(mean_loss)(p, x, y)))
    return lax.fori_loop(0, 3, step, p)


def until_small(p, x, y):
    def step(p):
        return descend(p, pmean(jax.grad(mean_loss)(p, x, y)))

    goes_on = lambda p: (pmean(mean_loss(p, x, y)) > 0.9) & (p["g"][0] < 2)
    return lax.while_loop(goes_on, step, p)


def class_token(params, x, y):
    def loss(params):
        token = jnp.tile(params["w"][:1], [x.shape[0], 1])
        pattern = jnp.tile(params["g"][:2], x.shape[0]).reshape(x.shape[0], 2)
        hidden = jnp.concatenate([x @ params["w"], token], 1)
        return jnp.mean(jnp.tanh(hidden).sum(1) * pattern.sum(1))

    return pmean(jax.grad(loss)(params))


PARALLEL = [
    Case("classifier with pmean", train(), labelled),
    Case("classifier with psum of mean gradients", train(psum), labelled),
    Case("psum with a step size divided by psum(1)", scaled_rate, labelled),
    Case("sum over the global size", sum_over_global_size, labelled),
    Case("a class token for each example", class_token, labelled),
    Case("Adam", adam, with_state),
    Case("clipping of averaged gradients", clipped_after, labelled),
    Case("mixed precision with loss scaling", mixed_precision, labelled),
    Case("exponential moving average", ema, with_state),
    Case("synced batch norm", normalized(pmean), with_state),
    Case("weighted evaluation with padding", evaluation, weighted),
    Case("weighted loss over the global weight", weighted_loss, weighted),
    Case("integer labels by take_along_axis", integer_labels, labelled),
    Case("integer labels by arange", indexed_labels, labelled),
    Case("convolutions and pooling", convolutional, images),
    Case("transformer with checkpoint", transformer, tokens),
    Case("layers by scan", layers_by_scan, labelled),
    Case("gradient accumulation", accumulated, labelled),
    Case("gradient accumulation in parts of two", accumulated_by_two, labelled),
    Case("GAN with two states", gan, labelled),
    Case("contrastive loss with all_gather", contrastive(False), labelled),
    Case("contrastive loss with labels by axis_index", contrastive(True), labelled),
    Case("all_gather and reshape", gathered, labelled),
    Case("noise of parameters by a replicated key", noise_of_parameters, with_key),
    Case("dropout by a key for each example", dropout_by_example, with_key),
    Case("maximum, minimum and a check of all", extremes, labelled),
    Case("an update every other step", conditional, with_state),
    Case("several steps in a loop", repeated, labelled),
    Case("steps until the global loss is small", until_small, labelled),
    Case("predictions of each example", lambda p, x, y: predict(p, x).argmax(-1), labelled),
    Case("no batch", lambda p, x, y: descend(p, p), labelled),
]


def data_dependent_loop(p, x, y):
    return pmean(lax.while_loop(lambda a: a.sum() < 9, lambda a: a + 1, x).mean())


def by_parity(p, x, y):
    return pmean(jnp.where(lax.axis_index(AXIS) % 2 == 0, 1.0, 2.0) * x.mean())


def rotated(p, x, y):
    n = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(k, (k + 1) % n) for k in range(n)])


def exchanged(p, x, y):
    return lax.all_to_all(jnp.outer(x[:, 0], jnp.arange(8.0)), AXIS, 1, 0, tiled=True)


def rl_state(n):
    arguments, axes = labelled(n)
    return (*arguments, normal(8, n, D)), (*axes, PER_DEVICE)


def environment(p, x, y, state):
    return descend(p, pmean(jax.grad(mean_loss)(p, x + state, y))), state + x.mean(0)


def local_contrastive(p, x, y):
    def loss(p):
        a, b = x @ p["w"], (x + 0.1) @ p["w"]
        return jax.nn.logsumexp(a @ b.T, axis=1).mean() - (a * b).sum(1).mean()

    return descend(p, pmean(jax.grad(loss)(p)))


def only_odd_groups(p, x, y):
    n = lax.axis_size(AXIS)
    groups = [list(range(0, n, 2)), list(range(1, n, 2))]
    return lax.psum(x.sum(), AXIS, axis_index_groups=groups)


def same_position(p, x, y):
    return pmean(x)


def accumulated_with_state(p, x, y):
    """The second microbatch takes the parameters that the first one left."""
    xs, ys = (a.reshape(2, -1, *a.shape[1:]) for a in (x, y))
    step = lambda p, micro: (descend(p, pmean(jax.grad(mean_loss)(p, *micro))), None)
    return lax.scan(step, p, (xs, ys))[0]


BY_DEVICE = [
    Case("dropout by a replicated key", dropout(False), with_key, "random_bits", "same on every"),
    Case("dropout by axis_index", dropout(True), with_key, "axis_index", "index of the device"),
    Case("dropout by a key a device", dropout(False), key_per_device, "argument 3", "differs"),
    Case("local batch norm", normalized(lambda x: x), with_state, "sub", "values with a mean"),
    Case("masked mean by pmean", masked_mean, weighted, "div", "divides by a sum"),
    Case("clipping before pmean", clipped_before, labelled, "", "not linear in"),
    Case("axis_index", by_parity, labelled, "axis_index", "index of the device"),
    Case("ppermute", rotated, labelled, "ppermute", "which device"),
    Case("all_to_all", exchanged, labelled, "all_to_all", "which device"),
    Case("state that differs by device", environment, rl_state, "argument 3", "differs"),
    Case("data-dependent loop", data_dependent_loop, labelled, "while", "number of iterations"),
    Case("contrastive loss on a device", local_contrastive, labelled, "dot_general", "pairs each"),
    Case("groups of devices", only_odd_groups, labelled, "psum", "groups"),
    Case("pmean of examples", same_position, labelled, "psum", "same position"),
    Case("gradients that stay on a device", train(lambda g: g), labelled, "output", "no coll"),
    Case("steps by microbatch", accumulated_with_state, labelled, "psum", "microbatches"),
]  # fmt: skip
