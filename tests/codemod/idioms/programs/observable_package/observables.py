"""Quantities measured along a run; each is a class whose mapped method has a static self."""

from functools import partial

import jax
import jax.numpy as jnp
from parallel import mean_over_devices, on_devices


class Observable:
    name = None

    def __init__(self, period=1):
        self.period = period

    def compute(self, key, params, walkers):
        raise NotImplementedError

    def __call__(self, step, keys, params, walkers):
        if step % self.period:
            return {}
        return {f"{self.name}/{k}": v for k, v in self.measure(keys, params, walkers).items()}

    def measure(self, keys, params, walkers):
        return self.compute(keys, params, walkers)


class Radius(Observable):
    name = "radius"

    @partial(on_devices, static_broadcasted_argnums=0)
    def compute(self, key, params, walkers):
        radius = jnp.sqrt(jnp.sum(walkers**2, -1))
        return {"mean": mean_over_devices(jnp.mean(radius)), "samples": radius}


class NoisyOverlap(Observable):
    def __init__(self, width, period=1):
        super().__init__(period)
        self.width = width
        self.name = f"overlap {width}"

    @partial(on_devices, static_broadcasted_argnums=0)
    def compute(self, key, params, walkers):
        shifted = walkers + self.width * jax.random.normal(key, walkers.shape)
        ratio = jnp.exp(-params["a"] * jnp.sum(shifted**2 - walkers**2, -1))
        return {"mean": mean_over_devices(jnp.mean(ratio))}
