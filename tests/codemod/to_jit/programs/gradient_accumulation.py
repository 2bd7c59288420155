# jit: train_step
# Gradients are summed over microbatches before they are averaged over devices.
import jax
import jax.numpy as jnp
import numpy as np

MICROBATCHES = 2


def train_step(w, x, y):
    def loss_fn(w, x, y):
        return jnp.mean((x @ w - y) ** 2)

    xs = x.reshape((MICROBATCHES, -1) + x.shape[1:])
    ys = y.reshape((MICROBATCHES, -1) + y.shape[1:])

    def accumulate(carry, microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(w, *microbatch)
        return (carry[0] + loss, carry[1] + grads), None

    (loss, grads), _ = jax.lax.scan(accumulate, (jnp.zeros(()), jnp.zeros_like(w)), (xs, ys))
    loss, grads = loss / MICROBATCHES, grads / MICROBATCHES
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    return w - 0.1 * grads, loss


step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    for _ in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        y = rng.normal(size=(32,)).astype("float32")
        w, loss = step(w, shard(x), shard(y))
        print("loss", float(loss[0]))
    print("w", np.asarray(w[0]).tolist())


if __name__ == "__main__":
    main()
