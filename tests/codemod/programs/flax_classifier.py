"""A Linen classifier in the manner of Flax's examples: TrainState, shard, unreplicate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax import linen as nn
from flax.training import common_utils, train_state

NUM_CLASSES = 4


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(features=4, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        return nn.Dense(features=NUM_CLASSES)(x)


def cross_entropy_loss(logits, labels):
    one_hot = common_utils.onehot(labels, num_classes=NUM_CLASSES)
    return optax.softmax_cross_entropy(logits=logits, labels=one_hot).mean()


def compute_metrics(logits, labels):
    metrics = {
        "loss": cross_entropy_loss(logits, labels),
        "accuracy": jnp.mean(jnp.argmax(logits, -1) == labels),
    }
    return jax.lax.pmean(metrics, axis_name="batch")


def create_train_state(rng, learning_rate):
    cnn = CNN()
    params = cnn.init(rng, jnp.ones([1, 6, 6, 1]))["params"]
    tx = optax.sgd(learning_rate, momentum=0.9)
    return train_state.TrainState.create(apply_fn=cnn.apply, params=params, tx=tx)


def train_step(state, batch):
    def loss_fn(params):
        logits = state.apply_fn({"params": params}, batch["image"])
        return cross_entropy_loss(logits, batch["label"]), logits

    grads, logits = jax.grad(loss_fn, has_aux=True)(state.params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    state = state.apply_gradients(grads=grads)
    return state, compute_metrics(logits, batch["label"])


def eval_step(state, batch):
    logits = state.apply_fn({"params": state.params}, batch["image"])
    return compute_metrics(logits, batch["label"])


def epoch(rng, count, batch_size):
    for _ in range(count):
        label = rng.randint(0, NUM_CLASSES, size=batch_size)
        image = rng.normal(size=(batch_size, 6, 6, 1)) + label[:, None, None, None] / 2
        yield {"image": image.astype(np.float32), "label": label}


def main():
    state = create_train_state(jax.random.PRNGKey(0), 0.1)
    state = jax_utils.replicate(state)
    p_train_step = jax.pmap(functools.partial(train_step), axis_name="batch", donate_argnums=(0,))
    p_eval_step = jax.pmap(eval_step, axis_name="batch")
    rng = np.random.RandomState(0)
    train_metrics = []
    for batch in epoch(rng, 4, 32):
        state, metrics = p_train_step(state, common_utils.shard(batch))
        train_metrics.append(metrics)
    train_metrics = common_utils.get_metrics(train_metrics)
    summary = jax.tree.map(lambda x: x.mean(), train_metrics)

    eval_metrics = []
    for batch in epoch(rng, 2, 16):
        eval_metrics.append(p_eval_step(state, common_utils.shard(batch)))
    eval_metrics = jax.device_get([jax_utils.unreplicate(m) for m in eval_metrics])
    state = jax_utils.unreplicate(state)
    print("train", summary, "eval", eval_metrics, "steps", int(state.step))
    return {
        "train": train_metrics,
        "eval": eval_metrics,
        "params": jax.device_get(state.params),
        "step": int(state.step),
    }


if __name__ == "__main__":
    main()
