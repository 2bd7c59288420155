"""Functions chosen by static arguments: a mode, a configuration, a callable."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int = 2
    activation: str = "relu"
    residual: bool = True


def network(params, x, config):
    act = getattr(jax.nn, config.activation)
    for i in range(config.depth):
        h = act(x @ params[i])
        x = x + h if config.residual else h
    return x


@functools.partial(jax.pmap, axis_name="b", static_broadcasted_argnums=(0, 3))
def apply(config, params, x, mode="train"):
    out = network(params, x, config)
    if mode == "train":
        return jax.lax.pmean(out.mean(), "b")
    return out.argmax(-1)


def reduce_with(x, how):
    return how(x, axis_name="batch")


reducer = jax.pmap(reduce_with, "batch", static_broadcasted_argnums=1)


class Model:
    def __init__(self, config):
        self.config = config
        self.norm = jax.pmap(self._norm, axis_name="b", static_broadcasted_argnums=[1])

    def _norm(self, params, order):
        total = sum(jnp.sum(jnp.abs(p) ** order) for p in params[: self.config.depth])
        return jax.lax.pmax(total ** (1 / order), "b")


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    params = jax.device_put_replicated(
        [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(3)], jax.local_devices()
    )
    x = rng.normal(size=(n, 5, 4)).astype(np.float32)
    results = {}
    for config in (Config(), Config(depth=3, activation="tanh"), Config(residual=False)):
        for mode in ("train", "predict"):
            results[f"{config} {mode}"] = np.asarray(apply(config, params, x, mode))
    results["default mode"] = np.asarray(apply(Config(depth=1), params, x, "train"))
    rows = np.arange(n * 2.0, dtype=np.float32).reshape(n, 2)
    for how in (jax.lax.psum, jax.lax.pmax, jax.lax.pmin):
        results[how.__name__] = np.asarray(reducer(rows, how))
    model = Model(Config(depth=3))
    results["norms"] = [np.asarray(model.norm(params, order)[0]) for order in (1, 2)]
    print({name: np.shape(value) for name, value in results.items()})
    return results


if __name__ == "__main__":
    main()
