"""Quantities measured along a run; each is a class."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from parallel import AXIS, mean_over_devices, shard_map


class Observable:
    name = None
    out_specs = P()

    def __init__(self, period=1):
        self.period = period

    def compute(self, key, params, walkers):
        raise NotImplementedError

    def __call__(self, step, keys, params, walkers):
        if step % self.period:
            return {}
        return {f"{self.name}/{k}": v for k, v in self.measure(keys, params, walkers).items()}

    @partial(jax.jit, static_argnums=0)
    def measure(self, keys, params, walkers):
        in_specs = (P(AXIS), P(), P(AXIS))
        compute = shard_map(self.compute, in_specs, self.out_specs)
        return compute(keys, params, walkers)


class Radius(Observable):
    name = "radius"
    out_specs = {"mean": P(), "samples": P(AXIS)}  # noqa: RUF012

    def compute(self, key, params, walkers):
        radius = jnp.sqrt(jnp.sum(walkers**2, -1))
        return {"mean": mean_over_devices(jnp.mean(radius)), "samples": radius}


class NoisyOverlap(Observable):
    def __init__(self, width, period=1):
        super().__init__(period)
        self.width = width
        self.name = f"overlap {width}"

    def compute(self, key, params, walkers):
        shifted = walkers + self.width * jax.random.normal(key[0], walkers.shape)
        ratio = jnp.exp(-params["a"] * jnp.sum(shifted**2 - walkers**2, -1))
        return {"mean": mean_over_devices(jnp.mean(ratio))}
