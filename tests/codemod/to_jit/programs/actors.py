# shard_map: act: mean over the device's own examples
# Each device has environments of its own, whose observations it normalizes by itself.
import jax
import jax.numpy as jnp
import numpy as np


def act(w, environments):
    observed = (environments - environments.mean(axis=0)) / (environments.std(axis=0) + 1e-3)
    actions = jnp.tanh(observed @ w)
    environments = environments + 0.1 * actions[:, None]
    reward = jax.lax.pmean(jnp.mean(actions), "batch")
    return environments, reward


p_act = jax.pmap(act, axis_name="batch")


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4,)).astype("float32"))
    environments = shard(rng.normal(size=(32, 4)).astype("float32"))
    for _ in range(3):
        environments, reward = p_act(w, environments)
        print("reward", float(reward[0]))


if __name__ == "__main__":
    main()
