# jit: train_step, eval_step
# The evaluation is mapped in a function that is called twice, and its metrics are read by shard.
import jax
import jax.numpy as jnp
import numpy as np
from norms import normalized


def eval_step(w, batch):
    loss = jnp.mean((normalized(batch) @ w - 1) ** 2)
    return {"loss": jax.lax.pmean(loss, axis_name="batch")}


def train_step(w, batch, key):
    # Each device has its own key, which nothing uses.
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    grads = jax.grad(lambda w: jnp.mean((normalized(batch) @ w - 1) ** 2))(w)
    # The same axis_name as in the call of pmap below.
    grads = jax.lax.pmean(grads, axis_name="batch")
    return w - 0.1 * grads


def batches(seed):
    random = np.random.default_rng(seed)
    made = {0: lambda: random.normal(size=(jax.device_count(), 4, 3)).astype("float32")}
    while True:
        yield made[0]()


def train(w, seed):
    p_train_step = jax.pmap(train_step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    p_eval_step = jax.pmap(eval_step, axis_name="batch", in_axes=(None, 0))
    for _, batch in zip(range(3), batches(seed), strict=False):
        w = p_train_step(w, batch, jax.random.key(seed))
        metrics = jax.tree.map(lambda x: x.addressable_shards[0].data, p_eval_step(w, batch))
        print(jax.tree.map(lambda x: float(x.reshape(())), metrics))
    return w


if __name__ == "__main__":
    w = train(jnp.ones(3), 0)
    print(train(w, 1))
