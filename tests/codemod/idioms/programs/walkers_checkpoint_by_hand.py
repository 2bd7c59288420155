"""Walkers with keys of their own, a width tuned by the host, all saved."""

import os
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "walker"


class Sample(NamedTuple):
    walkers: Any
    charge: Any


class Momentum:
    """A small optimizer; its state has the structure of the parameters."""

    def init(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(self, grads, state, params):
        state = jax.tree.map(lambda s, g: 0.5 * s + g, state, grads)
        return jax.tree.map(lambda p, s: p - 0.01 * s, params, state), state


def log_wave(params, x, charge):
    return -params["a"] * charge * jnp.sqrt(jnp.sum(x**2) + params["b"] ** 2)


def walk_step(params, data, key, width_of_moves):
    accept_key, move_key = jax.random.split(key[0])
    x = data.walkers
    proposed = x + width_of_moves * jax.random.normal(move_key, x.shape)
    batched = jax.vmap(log_wave, in_axes=(None, 0, None))
    ratio = 2 * (batched(params, proposed, data.charge) - batched(params, x, data.charge))
    accepted = jnp.log(jax.random.uniform(accept_key, ratio.shape)) < ratio
    x = jnp.where(accepted[:, None], proposed, x)
    moved = jax.lax.pmean(jnp.mean(accepted.astype(jnp.float32)), axis_name=AXIS)
    return x, moved


def make_step(optimizer, mesh):
    def step(params, moment, data):
        def loss_fn(params):
            return jnp.mean(jax.vmap(log_wave, in_axes=(None, 0, None))(params, *data) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        grads = jax.lax.pmean(grads, axis_name=AXIS)
        params, moment = optimizer.update(grads, moment, params)
        return params, moment, jax.lax.pmean(loss, axis_name=AXIS)

    return jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(P(), P(), Sample(P(AXIS), P())),
            out_specs=P(),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )


def save(path, params, moment, data, width, key):
    np.savez(
        path,
        walkers=np.asarray(data.walkers),
        width=width,
        key=key,
        **{f"params/{name}": value for name, value in params.items()},
        **{f"opt/{name}": value for name, value in moment.items()},
    )


def load(path, charge):
    with np.load(path) as saved:
        if saved["key"].shape[0] != jax.device_count():
            raise ValueError("the number of devices has changed")
        params = {name: saved[f"params/{name}"] for name in ("a", "b")}
        moment = {name: saved[f"opt/{name}"] for name in ("a", "b")}
        return params, moment, Sample(saved["walkers"], charge), saved["width"], saved["key"]


def main():
    optimizer = Momentum()
    n = jax.device_count()
    mesh = jax.make_mesh((n,), (AXIS,), axis_types=(AxisType.Auto,))
    walk = jax.jit(
        jax.shard_map(
            walk_step,
            mesh=mesh,
            in_specs=(P(), Sample(P(AXIS), P()), P(AXIS), P()),
            out_specs=(P(AXIS), P()),
            check_vma=False,
        )
    )
    step = make_step(optimizer, mesh)

    key, sub = jax.random.split(jax.random.PRNGKey(1))
    params = {"a": jnp.float32(1.0), "b": jnp.float32(0.5)}
    params = jax.device_put(params, NamedSharding(mesh, P()))
    moment = optimizer.init(params)
    data = Sample(jax.random.normal(sub, (n * 4, 3)), jnp.float32(2.0))
    own_keys = jax.random.split(key, n)
    width = jnp.asarray(0.5)
    losses, widths = [], []
    with tempfile.TemporaryDirectory() as folder:
        for t in range(4):
            own_keys, now = jax.vmap(jax.random.split, out_axes=1)(own_keys)
            walkers, moved = walk(params, data, now, width)
            data = data._replace(walkers=walkers)
            params, moment, loss = step(params, moment, data)
            losses.append(float(loss))
            width = width * (1.25 if moved > 0.55 else 0.75)
            widths.append(float(width))
            if t == 1:
                path = os.path.join(folder, "half_way.npz")
                save(path, params, moment, data, width, own_keys)
                params, moment, data, width, own_keys = load(path, data.charge)
    print("losses", losses, "widths", widths)
    return {
        "losses": losses,
        "widths": widths,
        "params": jax.tree.map(np.asarray, params),
        "walkers": np.asarray(data.walkers),
        "keys": np.asarray(own_keys),
    }


if __name__ == "__main__":
    main()
