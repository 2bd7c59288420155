"""The training step."""

import jax
import jax.numpy as jnp
import numpy as np

from . import AXIS, model
from . import parallelize as parallel


def create_state(seed):
    params = model.init(np.random.RandomState(seed))
    return {"params": params, "step": np.zeros((), np.int32)}


def shard(*arrays):
    n = jax.local_device_count()
    return tuple(x.reshape((n, len(x) // n) + x.shape[1:]) for x in arrays)


def cross_entropy(params, images, labels):
    log_probs = jax.nn.log_softmax(model.apply(params, images))
    return -jnp.mean(jnp.take_along_axis(log_probs, labels[:, None], axis=1))


@parallel(donate_argnums=(0,))
def train_step(state, images, labels):
    loss, grads = jax.value_and_grad(cross_entropy)(state["params"], images, labels)
    loss, grads = jax.lax.pmean((loss, grads), AXIS)
    params = jax.tree.map(lambda p, g: p - 0.5 * g, state["params"], grads)
    return {"params": params, "step": state["step"] + 1}, loss
