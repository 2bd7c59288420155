# jit: eval_step
# The last batch is padded; padded examples have weight 0, and sums go over all devices.
import jax
import jax.numpy as jnp
import numpy as np


def eval_step(w, batch):
    logits = batch["x"] @ w
    correct = (jnp.argmax(logits, axis=-1) == batch["y"]) * batch["weight"]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=-1)[:, 0]
    totals = {
        "correct": jnp.sum(correct),
        "loss": jnp.sum(losses * batch["weight"]),
        "count": jnp.sum(batch["weight"]),
    }
    return jax.lax.psum(totals, axis_name="batch")


p_eval_step = jax.pmap(eval_step, axis_name="batch")


def pad(batch, size):
    missing = size - len(batch["y"])
    padded = {
        k: np.concatenate([v, np.zeros((missing, *v.shape[1:]), v.dtype)]) for k, v in batch.items()
    }
    padded["weight"] = np.arange(size) < size - missing
    return padded


def shard(batch):
    return jax.tree.map(lambda x: x.reshape((jax.device_count(), -1) + x.shape[1:]), batch)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def main():
    rng = np.random.default_rng(0)
    w = replicate(rng.normal(size=(4, 3)).astype("float32"))
    totals = {"correct": 0.0, "loss": 0.0, "count": 0.0}
    for size in (32, 32, 13):
        x = rng.normal(size=(size, 4)).astype("float32")
        batch = pad({"x": x, "y": rng.integers(0, 3, size=(size,))}, 32)
        batch["weight"] = batch["weight"].astype("float32")
        sums = p_eval_step(w, shard(batch))
        totals["correct"] += float(sums["correct"][0])
        totals["loss"] += float(sums["loss"][0])
        totals["count"] += float(sums["count"][0])
    print("accuracy", totals["correct"] / totals["count"], "loss", totals["loss"] / totals["count"])


if __name__ == "__main__":
    main()
