"""A train state with averaged parameters, and pad_shard_unpad around the evaluation."""

import functools
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import train_state


class EmaState(train_state.TrainState):
    ema_params: Any
    ema_decay: float = flax.struct.field(pytree_node=False, default=0.8)

    def apply_gradients(self, *, grads, **kwargs):
        state = super().apply_gradients(grads=grads, **kwargs)
        ema = optax.incremental_update(state.params, self.ema_params, 1 - self.ema_decay)
        return state.replace(ema_params=ema)


class Regressor(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))[..., 0]


@functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
def update(state, x, y):
    def loss_fn(params):
        return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    loss, grads = jax.lax.pmean((loss, grads), "batch")
    return state.apply_gradients(grads=grads), loss


def evaluate(variables, x, model):
    return model.apply(variables, x)


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    model = Regressor()
    params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 2)))["params"]
    state = EmaState.create(
        apply_fn=model.apply, params=params, ema_params=params, tx=optax.adam(0.05)
    )
    state = flax.jax_utils.replicate(state)
    losses = []
    for _ in range(4):
        x = rng.uniform(-1, 1, size=(n, 4, 2)).astype(np.float32)
        state, loss = update(state, x, x[..., 0] * x[..., 1])
        losses.append(float(flax.jax_utils.unreplicate(loss)))

    p_evaluate = jax_utils.pad_shard_unpad(jax.pmap(functools.partial(evaluate, model=model)))
    test = rng.uniform(-1, 1, size=(21, 2)).astype(np.float32)
    outputs = {}
    for name in ("params", "ema_params"):
        outputs[name] = p_evaluate({"params": getattr(state, name)}, test)
        assert outputs[name].shape == (21,)
    print("losses", losses, {k: float(np.square(v).mean()) for k, v in outputs.items()})
    final = jax_utils.unreplicate(state)
    return {"losses": losses, "outputs": outputs, "ema": jax.device_get(final.ema_params)}


if __name__ == "__main__":
    main()
