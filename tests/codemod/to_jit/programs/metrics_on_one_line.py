# jit: train_step
# A mean and a sum over the devices on one line; the step is made by a function, whose caller names
# it as that function does.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def make_step(rate):
    def train_step(w, x, y):
        def loss_fn(w):
            z = x @ w
            return jnp.mean(jnp.log1p(jnp.exp(-y * z))), z

        (loss, z), grads = jax.value_and_grad(loss_fn, has_aux=True)(w)
        metrics = {"loss": lax.pmean(loss, "i"), "correct": lax.psum(jnp.sum(z * y > 0), "i")}
        return w - rate * lax.pmean(grads, "i"), metrics

    return jax.pmap(train_step, axis_name="i", donate_argnums=0)


def main():
    n = jax.local_device_count()
    random = np.random.default_rng(5)
    w = jax.device_put_replicated(np.zeros(3, np.float32), jax.local_devices())
    train_step = make_step(0.3)
    for _ in range(3):
        x = random.normal(size=(24, 3)).astype(np.float32)
        y = np.sign(x[:, 0]).astype(np.float32)
        w, metrics = train_step(w, x.reshape(n, -1, 3), y.reshape(n, -1))
        metrics = jax.tree.map(lambda m: m[0], metrics)
        print(float(metrics["loss"]), int(metrics["correct"]))


if __name__ == "__main__":
    main()
