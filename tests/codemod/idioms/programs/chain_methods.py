"""A sampler that runs its chains in parallel, vectorized or in sequence, as a string says."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, pmap, random, vmap


class Walk(NamedTuple):
    i: Any
    z: Any
    acceptance: Any
    key: Any


class Kernel:
    def __init__(self, width):
        self.width = width

    @staticmethod
    def potential(z):
        return 0.5 * jnp.sum((z["loc"] - 1) ** 2) + 0.5 * jnp.sum(z["scale"] ** 2)

    def init(self, key):
        key_loc, key_scale, key = random.split(key, 3)
        z = {"loc": random.normal(key_loc, (2,)), "scale": random.normal(key_scale)}
        return Walk(jnp.int32(0), z, jnp.float32(0), key)

    def sample(self, state):
        key, key_move, key_accept = random.split(state.key, 3)
        noise = random.normal(key_move, (3,))
        proposed = {
            "loc": state.z["loc"] + self.width * noise[:2],
            "scale": state.z["scale"] + self.width * noise[2],
        }
        acceptance = jnp.minimum(1, jnp.exp(self.potential(state.z) - self.potential(proposed)))
        accepted = random.uniform(key_accept) < acceptance
        z = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, state.z)
        return Walk(state.i + 1, z, acceptance, key)


class Sampler:
    def __init__(self, kernel, *, warmup, draws, chains, how="devices"):
        if how == "devices" and jax.local_device_count() < chains:
            how = "loop"
        self.kernel, self.how = kernel, how
        self.warmup, self.draws, self.chains = warmup, draws, chains
        self._ends = None

    def _chain(self, init, fields):
        key, start = init
        if start is None:
            start = self.kernel.init(key)
            start = lax.fori_loop(0, self.warmup, lambda _, state: self.kernel.sample(state), start)

        def body(state, _):
            state = self.kernel.sample(state)
            return state, {name: getattr(state, name) for name in fields}

        end, found = lax.scan(body, start, None, self.draws)
        return found, end

    def run(self, key, fields=("z",)):
        keys = random.split(key, self.chains)
        one_chain = functools.partial(self._chain, fields=fields)
        starts = (keys, self._ends)
        if self.how == "loop":
            found = lax.map(one_chain, starts)
        elif self.how == "devices":
            found = pmap(one_chain)(starts)
        else:
            found = vmap(one_chain)(starts)
        self._states, self._ends = found

    def samples(self, by_chain=False):
        if by_chain:
            return self._states["z"]
        return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), self._states["z"])


def main():
    results = {}
    for how, chains in (("devices", 8), ("devices", 4), ("batch", 3)):
        sampler = Sampler(Kernel(0.5), warmup=3, draws=5, chains=chains, how=how)
        sampler.run(random.PRNGKey(3))
        sampler.run(random.PRNGKey(1), fields=("z", "acceptance"))
        name = f"{how} {chains}"
        results[name] = jax.device_get(sampler.samples())
        results[f"{name} steps"] = np.asarray(sampler._ends.i)
        results[f"{name} chains"] = np.shape(sampler.samples(by_chain=True)["loc"])
    print({name: np.shape(x) for name, x in results.items() if not isinstance(x, dict)})
    return results


if __name__ == "__main__":
    main()
