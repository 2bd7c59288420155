"""Batch statistics that differ by device and are synced before evaluation, as for ImageNet."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import train_state


class Block(nn.Module):
    features: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.features, (3, 3), use_bias=False)(x)
        y = nn.relu(self.norm()(y))
        return x + self.norm(scale_init=nn.initializers.zeros)(nn.Conv(self.features, (1, 1))(y))


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = True):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.Conv(4, (3, 3))(x)
        x = Block(4, norm)(x)
        return nn.Dense(3)(x.mean((1, 2)))


class TrainState(train_state.TrainState):
    batch_stats: Any


def create_train_state(rng, model, learning_rate_fn):
    variables = model.init({"params": rng}, jnp.ones((1, 4, 4, 1)))
    return TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.sgd(learning_rate_fn, momentum=0.9, nesterov=True),
        batch_stats=variables["batch_stats"],
    )


def train_step(state, batch, learning_rate_fn):
    def loss_fn(params):
        logits, new_model_state = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["image"],
            mutable=["batch_stats"],
        )
        labels = jax.nn.one_hot(batch["label"], 3)
        loss = optax.softmax_cross_entropy(logits, labels).mean()
        penalty = sum(jnp.sum(x**2) for x in jax.tree_util.tree_leaves(params) if x.ndim > 1)
        return loss + 1e-3 * penalty, (new_model_state, logits)

    lr = learning_rate_fn(state.step)
    (loss, (new_model_state, _)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    new_state = state.apply_gradients(grads=grads, batch_stats=new_model_state["batch_stats"])
    metrics = jax.lax.pmean({"loss": loss}, axis_name="batch")
    metrics["learning_rate"] = lr
    return new_state, metrics


def eval_step(state, batch):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, batch["image"], train=False, mutable=False)
    return jax.lax.pmean(jnp.mean(logits.argmax(-1) == batch["label"]), axis_name="batch")


# A map of its own: outside of one there is no axis to average over.
average_replicas = jax.pmap(lambda tree: jax.lax.pmean(tree, "replica"), "replica")


def with_shared_stats(state):
    """Averages the statistics, which each replica has its own of."""
    return state.replace(batch_stats=average_replicas(state.batch_stats))


def main():
    n = jax.local_device_count()
    model = ResNet()
    learning_rate_fn = optax.cosine_decay_schedule(0.1, 6)
    state = create_train_state(jax.random.PRNGKey(0), model, learning_rate_fn)
    state = jax_utils.replicate(state)
    p_train_step = jax.pmap(
        functools.partial(train_step, learning_rate_fn=learning_rate_fn), axis_name="batch"
    )
    p_eval_step = jax.pmap(eval_step, axis_name="batch")
    rng = np.random.RandomState(0)
    log = []
    for _ in range(3):
        label = rng.randint(0, 3, size=(n, 4))
        image = rng.normal(size=(n, 4, 4, 4, 1)) * (1 + label[..., None, None, None])
        batch = {"image": image.astype(np.float32), "label": label}
        state, metrics = p_train_step(state, batch)
        log.append(jax.tree_util.tree_map(lambda x: np.asarray(x[0]), metrics))
    state = with_shared_stats(state)
    accuracy = p_eval_step(state, batch)
    print(log, "accuracy", float(accuracy[0]))
    stats = jax.device_get(jax.tree_util.tree_map(lambda x: x[0], state.batch_stats))
    return {"log": log, "accuracy": np.asarray(accuracy), "stats": stats}


if __name__ == "__main__":
    main()
