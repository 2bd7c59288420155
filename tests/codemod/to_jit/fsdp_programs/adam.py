# fsdp: state.opt_state, state.params
# The state of an optimizer library: named tuples, with a count, in a dataclass like Flax's.
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class ScaleByAdamState(NamedTuple):
    count: Any
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    step: Any
    params: Any
    opt_state: Any
    learning_rate: float = dataclasses.field(metadata={"static": True}, default=0.01)

    def apply_gradients(self, grads):
        adam, empty = self.opt_state
        count = adam.count + 1
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, grads)
        nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, adam.nu, grads)

        def update(w, m, v):
            m, v = m / (1 - 0.9**count), v / (1 - 0.99**count)
            return w - self.learning_rate * m / (jnp.sqrt(v) + 1e-3)

        params = jax.tree.map(update, self.params, mu, nu)
        return dataclasses.replace(
            self,
            step=self.step + 1,
            params=params,
            opt_state=(ScaleByAdamState(count, mu, nu), empty),
        )


def create_state(rng):
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    params = {
        "dense": {"kernel": normal(64, 24) / 8, "bias": np.zeros(24, "float32")},
        "out": normal(24),
    }
    zeros = jax.tree.map(np.zeros_like, params)
    return TrainState(0, params, (ScaleByAdamState(jnp.int32(0), zeros, zeros), ()))


def train_step(state, x, y):
    def loss_fn(params):
        h = jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
        return jnp.mean((h @ params["out"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, axis_name="data")
    metrics = {"loss": jax.lax.pmean(loss, axis_name="data")}
    return state.apply_gradients(grads), metrics


def main():
    rng = np.random.default_rng(0)
    n = jax.local_device_count()
    state = jax.device_put_replicated(create_state(rng), jax.local_devices())
    p_step = jax.pmap(train_step, axis_name="data", donate_argnums=(0,))
    for _ in range(3):
        x = rng.normal(size=(32, 64)).astype("float32")
        y = rng.normal(size=(32,)).astype("float32")
        state, metrics = p_step(state, x.reshape(n, -1, 64), y.reshape(n, -1))
        print("loss", float(metrics["loss"][0]))
    print("out", np.asarray(state.params["out"][0]).tolist())
    return state


if __name__ == "__main__":
    main()
