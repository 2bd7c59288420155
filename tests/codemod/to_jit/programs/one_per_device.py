# shard_map: losses: mean over the device's own examples
# The result is the loss of each device, which no collective combines.
import jax
import jax.numpy as jnp
import numpy as np


def losses(w, x):
    return jnp.mean((x @ w) ** 2)


p_losses = jax.pmap(losses, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    found = p_losses(w, shard(rng.normal(size=(32, 4)).astype("float32")))
    print("losses", np.asarray(found).tolist())


if __name__ == "__main__":
    main()
