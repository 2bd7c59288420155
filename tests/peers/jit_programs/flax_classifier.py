# jit: train_step, eval_step
# Flax: batch norm over all devices, optax, and functions of flax.jax_utils.
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import train_state
from flax.training.common_utils import shard


class CNN(nn.Module):
    norm: Any

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(8, (3, 3))(x)
        x = self.norm(use_running_average=not train)(x)
        x = nn.relu(x).mean(axis=(1, 2))
        return nn.Dense(10)(x)


class TrainState(train_state.TrainState):
    batch_stats: Any


def create_model():
    return CNN(norm=functools.partial(nn.BatchNorm, momentum=0.9, axis_name="batch"))


def train_step(state, batch):
    def loss_fn(params):
        logits, new = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["image"],
            True,
            mutable=["batch_stats"],
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
        return loss, (new, logits)

    (loss, (new, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    metrics = {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["label"])}
    metrics = jax.lax.pmean(metrics, axis_name="batch")
    return state.apply_gradients(grads=grads, batch_stats=new["batch_stats"]), metrics


def eval_step(state, batch):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, batch["image"], False)
    return jax.lax.pmean(jnp.mean(jnp.argmax(logits, -1) == batch["label"]), axis_name="batch")


def main():
    rng = np.random.default_rng(0)
    model = create_model()
    variables = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 3)), False)
    state = TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adamw(1e-3),
        batch_stats=variables["batch_stats"],
    )
    state = jax_utils.replicate(state)
    p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
    p_eval_step = jax.pmap(eval_step, axis_name="batch")
    for step in range(3):
        batch = {
            "image": rng.normal(size=(32, 8, 8, 3)).astype("float32"),
            "label": rng.integers(0, 10, size=(32,)),
        }
        state, metrics = p_train_step(state, shard(batch))
        print(step, jax_utils.unreplicate(metrics))
    print(p_eval_step(state, shard(batch))[0])


if __name__ == "__main__":
    main()
