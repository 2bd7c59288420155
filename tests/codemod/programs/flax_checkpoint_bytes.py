"""A state written with flax.serialization and read back into a replicated one."""

import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils, serialization
from flax import linen as nn
from flax.training.train_state import TrainState


class Autoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(3)(x)))


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((state.apply_fn(params, batch) - batch) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, "data")
    return state.apply_gradients(grads=grads), jax.lax.pmean(loss, "data")


def save(state, workdir):
    if jax.process_index() == 0:
        state = jax.device_get(jax.tree_util.tree_map(lambda x: x[0], state))
        with open(os.path.join(workdir, f"{int(state.step)}.msgpack"), "wb") as f:
            f.write(serialization.to_bytes(state))


def restore(state, workdir):
    names = sorted(os.listdir(workdir))
    with open(os.path.join(workdir, names[-1]), "rb") as f:
        return serialization.from_bytes(state, f.read())


def main():
    n = jax.local_device_count()
    model = Autoencoder()
    params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 5)))
    fresh = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    state = jax_utils.replicate(fresh)
    step = jax.pmap(train_step, axis_name="data")
    data = np.random.RandomState(0).normal(size=(6, n, 4, 5)).astype(np.float32)
    losses = []
    with tempfile.TemporaryDirectory() as workdir:
        for number, batch in enumerate(data):
            state, loss = step(state, batch)
            losses.append(float(loss[0]))
            if number == 2:
                save(state, workdir)
                size = os.path.getsize(os.path.join(workdir, "3.msgpack"))
        restored = restore(fresh, workdir)
    assert int(restored.step) == 3
    again = jax_utils.replicate(restored)
    for batch in data[3:]:
        again, loss = step(again, batch)
    assert float(loss[0]) == losses[-1]
    print("losses", losses, "bytes", size)
    return {"losses": losses, "params": jax.device_get(jax_utils.unreplicate(again).params)}


if __name__ == "__main__":
    main()
