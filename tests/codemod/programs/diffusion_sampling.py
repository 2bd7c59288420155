"""Denoising diffusion: a step of training, then samples drawn on all devices at once."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

TIMESTEPS = 12
BETAS = np.linspace(1e-3, 0.2, TIMESTEPS, dtype=np.float32)
ALPHAS = 1.0 - BETAS
ALPHA_BARS = np.cumprod(ALPHAS)


def time_embedding(t, dim=8):
    freqs = jnp.exp(-math.log(100.0) * jnp.arange(dim // 2) / (dim // 2))
    angles = t[..., None] * freqs
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def predict_noise(params, x, t):
    h = jnp.concatenate([x, time_embedding(t)], axis=-1)
    return jax.nn.swish(h @ params["w1"] + params["b1"]) @ params["w2"]


def train_step(params, x0, rng):
    rng_t, rng_noise = jax.random.split(rng)
    t = jax.random.randint(rng_t, x0.shape[:1], 0, TIMESTEPS)
    noise = jax.random.normal(rng_noise, x0.shape)
    signal = jnp.asarray(ALPHA_BARS)[t][:, None]
    noisy = jnp.sqrt(signal) * x0 + jnp.sqrt(1 - signal) * noise

    def loss_fn(params):
        return jnp.mean((predict_noise(params, noisy, t.astype(jnp.float32)) - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, axis_name="devices")
    params = jax.tree_util.tree_map(lambda p, g: p - 0.02 * g, params, grads)
    return params, jax.lax.pmean(loss, axis_name="devices")


def sample_loop(params, rng, shape):
    rng, init_rng = jax.random.split(rng)
    x = jax.random.normal(init_rng, shape)

    def body(i, carry):
        x, rng = carry
        t = TIMESTEPS - 1 - i
        eps = predict_noise(params, x, jnp.full(shape[:1], t, jnp.float32))
        alpha, alpha_bar = jnp.asarray(ALPHAS)[t], jnp.asarray(ALPHA_BARS)[t]
        mean = (x - (1 - alpha) / jnp.sqrt(1 - alpha_bar) * eps) / jnp.sqrt(alpha)
        rng, noise_rng = jax.random.split(rng)
        noise = jnp.where(t > 0, jax.random.normal(noise_rng, shape), 0.0)
        return mean + jnp.sqrt(1 - alpha) * noise, rng

    x, _ = jax.lax.fori_loop(0, TIMESTEPS, body, (x, rng))
    return x


p_train_step = jax.pmap(train_step, axis_name="devices", donate_argnums=(0,))
p_sample_loop = jax.pmap(sample_loop, static_broadcasted_argnums=2)


def main():
    n = jax.local_device_count()
    rs = np.random.RandomState(0)
    params = {
        "w1": rs.normal(size=(10, 16), scale=0.3).astype(np.float32),
        "b1": np.zeros(16, np.float32),
        "w2": rs.normal(size=(16, 2), scale=0.3).astype(np.float32),
    }
    params = jax.device_put_replicated(params, jax.local_devices())
    rng = jax.random.PRNGKey(0)
    losses = []
    for _ in range(4):
        angle = rs.uniform(0, 2 * np.pi, size=(n, 8))
        circle = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
        rng, *step_rngs = jax.random.split(rng, n + 1)
        params, loss = p_train_step(params, circle, jnp.stack(step_rngs))
        losses.append(float(loss.mean()))
    rng, sample_rng = jax.random.split(rng)
    sample_rngs = jax.random.split(sample_rng, n)
    samples = p_sample_loop(params, sample_rngs, (4, 2))
    small = functools.partial(p_sample_loop, params)(sample_rngs, (1, 2))
    images = np.asarray(samples).reshape(-1, 2)
    print("losses", losses, "radius", np.hypot(*images.T).mean())
    return {"losses": losses, "images": images, "small": np.asarray(small)}


if __name__ == "__main__":
    main()
