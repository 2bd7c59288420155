# jit: train_step
# Two networks with a state each, trained in turns.
import jax
import jax.numpy as jnp
import numpy as np


def generate(g, z):
    return jnp.tanh(z @ g["w"]) + g["b"]


def judge(d, x):
    return jnp.tanh(x @ d["w1"]) @ d["w2"]


def train_step(g, d, z, real):
    def loss_of_judge(d):
        fake = generate(g, z)
        return jnp.mean(jax.nn.softplus(-judge(d, real))) + jnp.mean(
            jax.nn.softplus(judge(d, fake))
        )

    def loss_of_generator(g):
        return jnp.mean(jax.nn.softplus(-judge(d, generate(g, z))))

    d_loss, d_grads = jax.value_and_grad(loss_of_judge)(d)
    d_grads = jax.lax.pmean(d_grads, axis_name="batch")
    d = jax.tree.map(lambda p, x: p - 0.1 * x, d, d_grads)
    g_loss, g_grads = jax.value_and_grad(loss_of_generator)(g)
    g_grads = jax.lax.pmean(g_grads, axis_name="batch")
    g = jax.tree.map(lambda p, x: p - 0.1 * x, g, g_grads)
    losses = jax.lax.pmean({"g": g_loss, "d": d_loss}, axis_name="batch")
    return g, d, losses


step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0, 1))


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    g = replicate({"w": normal(3, 4), "b": normal(4)})
    d = replicate({"w1": normal(4, 8), "w2": normal(8)})
    for _ in range(3):
        g, d, losses = step(g, d, shard(normal(32, 3)), shard(normal(32, 4)))
        print("losses", float(losses["g"][0]), float(losses["d"][0]))
    print("g", np.asarray(g["b"][0]).tolist())


if __name__ == "__main__":
    main()
