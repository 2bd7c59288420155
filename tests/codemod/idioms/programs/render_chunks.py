"""Rays rendered in chunks: padded, sharded, gathered on every device and unsharded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

CHUNK = 40


def spread(xs):
    """Splits data along the first axis, one part a device."""
    return jax.tree.map(lambda x: x.reshape((jax.local_device_count(), -1) + x.shape[1:]), xs)


def join(x, extra=0):
    """Undoes the split and takes padding off."""
    joined = x.reshape(-1, *x.shape[2:])
    return joined[: len(joined) - extra]


def model(params, key, rays, progress):
    t = jnp.linspace(0, 1, 4)
    if key is not None:
        t = t + 0.01 * jax.random.normal(key, t.shape)
    points = rays["origins"][:, None] + t[:, None] * rays["directions"][:, None]
    rgb = jax.nn.sigmoid(progress * jnp.sin(points @ params["w"] + params["b"]))
    weights = jax.nn.softmax(points.sum(-1), axis=-1)
    return {"rgb": jnp.sum(weights[..., None] * rgb, axis=1), "acc": weights.max(-1)}


def make_step(rate):
    def train_step(key, params, batch, progress):
        key, jitter_key = jax.random.split(key)

        def loss_fn(params):
            rgb = model(params, jitter_key, batch["rays"], progress)["rgb"]
            return jnp.mean((rgb - batch["rgb"]) ** 2)

        both = jax.lax.pmean(jax.value_and_grad(loss_fn)(params), axis_name="batch")
        loss, grad = both
        params = jax.tree.map(lambda p, g: p - rate * g, params, grad)
        return params, {"loss": loss, "norm": jnp.sum(params["w"] ** 2)}, key

    return jax.pmap(train_step, axis_name="batch", in_axes=(0, 0, 0, None), donate_argnums=(0, 1))


def make_render():
    def render(params, progress, _, rays):
        return jax.lax.all_gather(model(params, None, rays, progress), axis_name="batch")

    # Only the data is mapped.
    return jax.pmap(render, in_axes=(None, None, None, 0), axis_name="batch")


def render_image(render_fn, rays):
    count = rays["origins"].shape[0]
    chunks = []
    for start in range(0, count, CHUNK):
        part = jax.tree.map(lambda r: r[start : start + CHUNK], rays)
        extra = -len(part["origins"]) % jax.device_count()
        if extra:
            part = jax.tree.map(lambda r: np.pad(r, ((0, extra), (0, 0)), mode="edge"), part)
        found = render_fn(None, spread(part))
        # All devices have gathered the same.
        chunks.append(jax.tree.map(lambda v: np.asarray(join(v[0], extra)), found))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)


def main():
    rng = np.random.RandomState(0)
    rays = {
        "origins": rng.normal(size=(70, 3)).astype(np.float32),
        "directions": rng.normal(size=(70, 3)).astype(np.float32),
    }
    params = {"w": rng.normal(size=(3, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    state = jax.device_put_replicated(params, jax.local_devices())
    keys = jax.random.split(jax.random.PRNGKey(20), jax.local_device_count())
    p_step, p_render = make_step(0.5), make_render()
    kept = []
    for step in range(3):
        picked = rng.randint(0, 70, size=32)
        batch = spread(
            {
                "rays": jax.tree.map(lambda r: r[picked], rays),
                "rgb": np.abs(rays["origins"][picked]),
            }
        )
        state, stats, keys = p_step(keys, state, batch, (step + 1) / 3)
        kept.append(jax.tree.map(lambda x: x[0], stats))
    params = jax.tree.map(lambda x: x[0], state)
    image = render_image(functools.partial(p_render, params, 1.0), rays)
    print([float(stats["loss"]) for stats in kept])
    return {"stats": jax.device_get(kept), "image": image, "keys": np.asarray(keys)}


if __name__ == "__main__":
    main()
