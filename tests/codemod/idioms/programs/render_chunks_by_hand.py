"""Rays rendered in chunks that are padded and sharded over the devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

CHUNK = 40


def model(params, key, rays, progress):
    t = jnp.linspace(0, 1, 4)
    if key is not None:
        t = t + 0.01 * jax.random.normal(key, t.shape)
    points = rays["origins"][:, None] + t[:, None] * rays["directions"][:, None]
    rgb = jax.nn.sigmoid(progress * jnp.sin(points @ params["w"] + params["b"]))
    weights = jax.nn.softmax(points.sum(-1), axis=-1)
    return {"rgb": jnp.sum(weights[..., None] * rgb, axis=1), "acc": weights.max(-1)}


def make_step(rate, mesh):
    def train_step(key, params, batch, progress):
        key, jitter_key = jax.random.split(key[0])

        def loss_fn(params):
            rgb = model(params, jitter_key, batch["rays"], progress)["rgb"]
            return jnp.mean((rgb - batch["rgb"]) ** 2)

        both = jax.lax.pmean(jax.value_and_grad(loss_fn)(params), axis_name="batch")
        loss, grad = both
        params = jax.tree.map(lambda p, g: p - rate * g, params, grad)
        return params, {"loss": loss, "norm": jnp.sum(params["w"] ** 2)}, key[None]

    return jax.jit(
        jax.shard_map(
            train_step,
            mesh=mesh,
            in_specs=(P("batch"), P(), P("batch"), P()),
            out_specs=(P(), P(), P("batch")),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )


def make_render(mesh):
    def render(params, progress, _, rays):
        return model(params, None, rays, progress)

    # Only the data is sharded.
    return jax.jit(
        jax.shard_map(
            render,
            mesh=mesh,
            in_specs=(P(), P(), P(), P("batch")),
            out_specs=P("batch"),
            check_vma=False,
        )
    )


def render_image(render_fn, rays):
    count = rays["origins"].shape[0]
    chunks = []
    for start in range(0, count, CHUNK):
        part = jax.tree.map(lambda r: r[start : start + CHUNK], rays)
        extra = -len(part["origins"]) % jax.device_count()
        if extra:
            part = jax.tree.map(lambda r: np.pad(r, ((0, extra), (0, 0)), mode="edge"), part)
        found = render_fn(None, part)
        chunks.append(jax.tree.map(lambda v: np.asarray(v)[: len(v) - extra], found))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)


def main():
    rng = np.random.RandomState(0)
    rays = {
        "origins": rng.normal(size=(70, 3)).astype(np.float32),
        "directions": rng.normal(size=(70, 3)).astype(np.float32),
    }
    params = {"w": rng.normal(size=(3, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    state = jax.device_put(params, NamedSharding(mesh, P()))
    keys = jax.random.split(jax.random.PRNGKey(20), jax.device_count())
    p_step, p_render = make_step(0.5, mesh), make_render(mesh)
    kept = []
    for step in range(3):
        picked = rng.randint(0, 70, size=32)
        batch = {
            "rays": jax.tree.map(lambda r: r[picked], rays),
            "rgb": np.abs(rays["origins"][picked]),
        }
        state, stats, keys = p_step(keys, state, batch, (step + 1) / 3)
        kept.append(stats)
    image = render_image(functools.partial(p_render, state, 1.0), rays)
    print([float(stats["loss"]) for stats in kept])
    return {"stats": jax.device_get(kept), "image": image, "keys": np.asarray(keys)}


if __name__ == "__main__":
    main()
