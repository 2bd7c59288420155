"""Walkers with keys of their own, a width tuned by the host, all saved stacked."""

import functools
import os
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "walker"
over_devices = functools.partial(jax.pmap, axis_name=AXIS)
split_all = jax.pmap(lambda own: tuple(jax.random.split(own, 2)))


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


def copies_on_devices(tree):
    n = jax.local_device_count()
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), tree)


def log_wave(params, x, charge):
    return -params["a"] * charge * jnp.sqrt(jnp.sum(x**2) + params["b"] ** 2)


def walk_step(params, data, key, width_of_moves):
    accept_key, move_key = jax.random.split(key)
    x = data.walkers
    proposed = x + width_of_moves * jax.random.normal(move_key, x.shape)
    batched = jax.vmap(log_wave, in_axes=(None, 0, None))
    ratio = 2 * (batched(params, proposed, data.charge) - batched(params, x, data.charge))
    accepted = jnp.log(jax.random.uniform(accept_key, ratio.shape)) < ratio
    x = jnp.where(accepted[:, None], proposed, x)
    moved = jax.lax.pmean(jnp.mean(accepted.astype(jnp.float32)), axis_name=AXIS)
    return x, moved


def make_step(optimizer):
    @functools.partial(over_devices, donate_argnums=(0, 1), in_axes=(0, 0, Sample(0, None)))
    def step(params, moment, data):
        def loss_fn(params):
            return jnp.mean(jax.vmap(log_wave, in_axes=(None, 0, None))(params, *data) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        grads = jax.lax.pmean(grads, axis_name=AXIS)
        params, moment = optimizer.update(grads, moment, params)
        return params, moment, jax.lax.pmean(loss, axis_name=AXIS)

    return step


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
        if saved["walkers"].shape[0] != jax.device_count():
            raise ValueError("the number of devices has changed")
        params = {name: saved[f"params/{name}"] for name in ("a", "b")}
        moment = {name: saved[f"opt/{name}"] for name in ("a", "b")}
        return params, moment, Sample(saved["walkers"], charge), saved["width"], saved["key"]


def main():
    optimizer = Momentum()
    walk = over_devices(walk_step, in_axes=(0, Sample(0, None), 0, 0))
    step = make_step(optimizer)
    n = jax.local_device_count()

    key, sub = jax.random.split(jax.random.PRNGKey(1))
    params = copies_on_devices({"a": jnp.float32(1.0), "b": jnp.float32(0.5)})
    moment = jax.pmap(optimizer.init)(params)
    data = Sample(jax.random.normal(sub, (n, 4, 3)), jnp.float32(2.0))
    own_keys = jax.random.split(key, n)
    width = copies_on_devices(jnp.asarray(0.5))
    losses, widths = [], []
    with tempfile.TemporaryDirectory() as folder:
        for t in range(4):
            own_keys, now = split_all(own_keys)
            walkers, moved = walk(params, data, now, width)
            data = data._replace(walkers=walkers)
            params, moment, loss = step(params, moment, data)
            # All devices have the same loss and the same rate of moves.
            losses.append(float(loss[0]))
            width = width * (1.25 if moved[0] > 0.55 else 0.75)
            widths.append(float(width[0]))
            if t == 1:
                path = os.path.join(folder, "half_way.npz")
                save(path, params, moment, data, width, own_keys)
                params, moment, data, width, own_keys = load(path, data.charge)
    print("losses", losses, "widths", widths)
    return {
        "losses": losses,
        "widths": widths,
        "params": jax.tree.map(lambda x: np.asarray(x[0]), params),
        "walkers": np.asarray(data.walkers).reshape(-1, 3),
        "keys": np.asarray(own_keys),
    }


if __name__ == "__main__":
    main()
