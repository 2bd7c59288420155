"""A generator and a discriminator, two mapped steps that take turns on two stacked states."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

LATENT = 2


def mlp(params, x):
    for w, b in params[:-1]:
        x = jax.nn.leaky_relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def init_mlp(rng, sizes):
    return [
        (rng.normal(size=(m, n)).astype(np.float32) / np.sqrt(m), np.zeros(n, np.float32))
        for m, n in itertools.pairwise(sizes)
    ]


def bce(logits, target):
    return jnp.mean(jax.nn.softplus(logits) - target * logits)


def adam_init(params):
    zeros = jax.tree.map(np.zeros_like, params)
    return {"m": zeros, "v": zeros, "t": np.int32(0)}


def adam(params, opt, grads, lr=0.01):
    t = opt["t"] + 1
    m = jax.tree.map(lambda m, g: 0.5 * m + 0.5 * g, opt["m"], grads)
    v = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g**2, opt["v"], grads)
    params = jax.tree.map(
        lambda p, m, v: p - lr * (m / (1 - 0.5**t)) / (jnp.sqrt(v / (1 - 0.9**t)) + 1e-8),
        params,
        m,
        v,
    )
    return params, {"m": m, "v": v, "t": t}


def d_step(disc, gen, real, key):
    fake = mlp(gen["params"], jax.random.normal(key, (real.shape[0], LATENT)))

    def loss_fn(params):
        return bce(mlp(params, real), 1.0) + bce(mlp(params, fake), 0.0)

    loss, grads = jax.value_and_grad(loss_fn)(disc["params"])
    loss, grads = jax.lax.pmean((loss, grads), axis_name="i")
    params, opt = adam(disc["params"], disc["opt"], grads)
    return {"params": params, "opt": opt}, loss


def g_step(gen, disc, key):
    z = jax.random.normal(key, (4, LATENT))

    def loss_fn(params):
        return bce(mlp(disc["params"], mlp(params, z)), 1.0)

    loss, grads = jax.value_and_grad(loss_fn)(gen["params"])
    loss, grads = jax.lax.pmean((loss, grads), axis_name="i")
    params, opt = adam(gen["params"], gen["opt"], grads)
    return {"params": params, "opt": opt}, loss


p_d_step = jax.pmap(d_step, axis_name="i", donate_argnums=(0,))
p_g_step = jax.pmap(g_step, axis_name="i", donate_argnums=(0,))


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    gen, disc = ({"params": init_mlp(rng, sizes)} for sizes in ((LATENT, 8, 2), (2, 8, 1)))
    for player in (gen, disc):
        player["opt"] = adam_init(player["params"])
    gen, disc = (jax.device_put_replicated(p, jax.local_devices()) for p in (gen, disc))
    key = jax.random.PRNGKey(0)
    log = []
    for _ in range(3):
        key, d_key, g_key = jax.random.split(key, 3)
        real = (np.array([2.0, -1.0]) + 0.3 * rng.normal(size=(n, 4, 2))).astype(np.float32)
        disc, d_loss = p_d_step(disc, gen, real, jax.random.split(d_key, n))
        gen, g_loss = p_g_step(gen, disc, jax.random.split(g_key, n))
        log.append([float(d_loss[0]), float(g_loss[0])])
    print("discriminator and generator", log)
    final = jax.tree.map(lambda x: np.asarray(x)[0], {"gen": gen, "disc": disc})
    return {"log": np.array(log), "final": final}


if __name__ == "__main__":
    main()
