"""Batch statistics over all devices in training, and synced running averages for evaluation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

MOMENTUM = 0.8


def batch_norm(x, scale, bias, stats, is_training, axis_name=None):
    if not is_training:
        mean, var = stats["mean"], stats["var"]
        new_stats = stats
    else:
        mean = jnp.mean(x, axis=0)
        mean_of_square = jnp.mean(x**2, axis=0)
        if axis_name is not None:
            mean, mean_of_square = jax.lax.pmean((mean, mean_of_square), axis_name)
        var = mean_of_square - mean**2
        new_stats = {
            "mean": MOMENTUM * stats["mean"] + (1 - MOMENTUM) * mean,
            "var": MOMENTUM * stats["var"] + (1 - MOMENTUM) * var,
        }
    return scale * (x - mean) * jax.lax.rsqrt(var + 1e-5) + bias, new_stats


def apply(params, stats, x, is_training, axis_name):
    h = x @ params["w0"]
    h, stats = batch_norm(h, params["scale"], params["bias"], stats, is_training, axis_name)
    return jax.nn.relu(h) @ params["w1"], stats


def step(params, stats, x, y, axis_name):
    def loss_fn(params):
        out, new_stats = apply(params, stats, x, True, axis_name)
        return jnp.mean((out - y) ** 2), new_stats

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    grads = jax.lax.pmean(grads, "batch")
    params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return params, stats, jax.lax.pmean(loss, "batch")


# With local statistics the running averages drift apart and are averaged before evaluation.
global_step = jax.pmap(partial(step, axis_name="batch"), axis_name="batch")
local_step = jax.pmap(partial(step, axis_name=None), axis_name="batch")
sync_stats = jax.pmap(lambda s: jax.lax.pmean(s, "x"), axis_name="x")


@partial(jax.pmap, in_axes=(0, 0, 0))
def evaluate(params, stats, x):
    return apply(params, stats, x, False, None)[0]


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    params = {
        "w0": rng.normal(size=(3, 6)).astype(np.float32),
        "scale": np.ones(6, np.float32),
        "bias": np.zeros(6, np.float32),
        "w1": rng.normal(size=(6, 1)).astype(np.float32),
    }
    stats = {"mean": np.zeros(6, np.float32), "var": np.ones(6, np.float32)}
    x = (3 * rng.normal(size=(n, 8, 3)) + np.arange(n)[:, None, None]).astype(np.float32)
    y = np.sin(x.sum(-1, keepdims=True))
    results = {}
    for name, update in {"global": global_step, "local": local_step}.items():
        p = jax.tree.map(lambda v: np.broadcast_to(v, (n, *v.shape)), params)
        s = jax.tree.map(lambda v: np.broadcast_to(v, (n, *v.shape)), stats)
        for _ in range(3):
            p, s, loss = update(p, s, x, y)
        drift = np.ptp(np.asarray(s["mean"]), axis=0).max()
        s = sync_stats(s)
        out = evaluate(p, s, x)
        print(f"{name}: loss {float(loss[0]):.5f}, drift {drift:.5f}")
        results[name] = {
            "loss": np.asarray(loss),
            "drift": drift,
            "stats": jax.tree.map(lambda v: np.asarray(v[0]), s),
            "out": np.asarray(out),
        }
    return results


if __name__ == "__main__":
    main()
