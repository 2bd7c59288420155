"""A program for several processes with one pmap for all its maps, as projects keep one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

HERE, DEVICES = jax.process_index(), jax.local_device_count()
AXIS = "walkers"
pmap = functools.partial(jax.pmap, axis_name=AXIS)


def move(params, walkers, key):
    key, own = jax.random.split(key)
    walkers = walkers + jax.random.normal(own, walkers.shape) * params["width"]
    energy = jnp.mean(walkers**2) * params["scale"]
    return walkers, key, {"energy": jax.lax.pmean(energy, AXIS), "own": energy}


def make_step():
    return pmap(move, in_axes=(None, 0, 0), donate_argnums=1)


@pmap
def centered(walkers):
    return walkers - jax.lax.pmean(walkers.mean(0), AXIS), jax.lax.axis_index(AXIS)


params = {"width": np.float32(0.5), "scale": np.float32(2.0)}
walkers = np.random.default_rng(HERE).normal(size=(DEVICES, 4, 3)).astype(np.float32)
keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(0), HERE), DEVICES)
step = make_step()
for _ in range(2):
    walkers, keys, metrics = step(params, walkers, keys)
total = pmap(lambda x: jax.lax.psum(x, AXIS), out_axes=None)(metrics["own"])

RESULTS = {
    "walkers": walkers,
    "keys": keys,
    "metrics": metrics,
    "centered": centered(walkers),
    "total": total,
    "is_local": [x.is_fully_addressable for x in jax.tree.leaves((walkers, metrics, total))],
}
