"""An experiment whose attributes are named in a table and saved and restored by name."""

import abc
import copy
import types

import jax
import jax.numpy as jnp
import numpy as np


def first_copy(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def to_every_device(tree):
    targets = jax.local_devices()
    copies = jax.tree.map(lambda leaf: [leaf for _ in targets], tree)
    is_copies = lambda node: isinstance(node, list)
    return jax.tree.map(lambda c: jax.device_put_sharded(c, targets), copies, is_leaf=is_copies)


class Saved(abc.ABC):
    # A mapping from attributes to the names under which they are saved.
    ATTRIBUTES = types.MappingProxyType({})

    @abc.abstractmethod
    def step(self, *, step_count, key):
        """Makes one step of training."""

    def snapshot(self):
        return {
            name: jax.device_get(first_copy(getattr(self, attribute)))
            for attribute, name in self.ATTRIBUTES.items()
        }

    def restore(self, saved):
        for attribute, name in self.ATTRIBUTES.items():
            setattr(self, attribute, to_every_device(saved[name]))


class Experiment(Saved):
    ATTRIBUTES = types.MappingProxyType({"_params": "params", "_moment": "moment"})

    def __init__(self, key):
        self._rng = np.random.RandomState(0)
        self._update = jax.pmap(self._update, axis_name="experiment", donate_argnums=(0, 1))
        initialize = jax.pmap(self._initial, axis_name="experiment")
        key = to_every_device(key)
        self._params, self._moment = initialize(key, self._batch())

    def _batch(self):
        n = jax.local_device_count()
        x = self._rng.normal(size=(n, 2, 3)).astype(np.float32)
        return {"x": x, "y": x.sum(-1, keepdims=True)}

    def _initial(self, key, batch):
        w = jax.random.normal(key, (batch["x"].shape[-1], 1))
        params = {"w": w, "scale": jnp.ones(())}
        return params, jax.tree.map(jnp.zeros_like, params)

    def _loss(self, params, batch, key):
        noise = 0.1 * jax.random.normal(key, batch["y"].shape)
        predicted = params["scale"] * (batch["x"] @ params["w"])
        return jnp.mean((predicted - batch["y"] + noise) ** 2)

    def _update(self, params, moment, step_count, key, batch):
        key = jax.random.fold_in(key, step_count)
        key = jax.random.fold_in(key, jax.lax.axis_index("experiment"))
        grads = jax.grad(self._loss)(params, batch, key)
        grads = jax.lax.pmean(grads, "experiment")
        moment = jax.tree.map(lambda m, g: 0.5 * m + g, moment, grads)
        params = jax.tree.map(lambda p, m: p - 0.05 * m, params, moment)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        return params, moment, {"grad_norm": norm, "step": step_count}

    def step(self, *, step_count, key):
        batch = self._batch()
        self._params, self._moment, scalars = self._update(
            self._params, self._moment, step_count, key, batch
        )
        return jax.tree.map(float, first_copy(scalars))


def run(experiment, steps):
    n = jax.local_device_count()
    key = to_every_device(jax.random.PRNGKey(2))
    step_count = np.broadcast_to(np.int32(steps[0]), (n,))
    logs = []
    for _ in steps:
        logs.append(experiment.step(step_count=step_count, key=key))
        step_count = 1 + step_count
    return logs


def main():
    experiment = Experiment(jax.random.PRNGKey(42))
    logs = run(experiment, range(2))
    saved = copy.deepcopy(experiment.snapshot())
    logs += run(experiment, range(2, 4))
    experiment.restore(saved)
    again = run(experiment, range(2, 4))
    print("logs", logs)
    return {"logs": logs, "again": again, "saved": saved, "end": experiment.snapshot()}


if __name__ == "__main__":
    main()
