"""A typical training program for the original pmap.

The train state has a leading device axis, batches are split over the devices, and metrics and the
checkpoint are read with `x[0]`. With JAX 0.10 it fails at `jax.device_put_replicated`.
"""

import argparse
import pickle
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FEATURES, HIDDEN, CLASSES = 64, 256, 10


def init_state(seed):
    random = np.random.RandomState(seed)
    params = {
        "w1": (random.randn(FEATURES, HIDDEN) / np.sqrt(FEATURES)).astype(np.float32),
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": (random.randn(HIDDEN, CLASSES) / np.sqrt(HIDDEN)).astype(np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }
    return {"step": np.int32(0), "params": params, "momentum": jax.tree.map(np.zeros_like, params)}


def predict(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_fn(params, batch):
    log_probs = jax.nn.log_softmax(predict(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(log_probs, batch["y"][:, None], axis=1))


@partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
    grads = lax.pmean(grads, axis_name="batch")
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.05 * m, state["params"], momentum)
    state = {"step": state["step"] + 1, "params": params, "momentum": momentum}
    return state, {"loss": lax.pmean(loss, axis_name="batch")}


def eval_step(state, batch):
    correct = jnp.argmax(predict(state["params"], batch["x"]), -1) == batch["y"]
    return lax.psum(jnp.sum(correct), axis_name="batch")


p_eval_step = jax.pmap(eval_step, axis_name="batch")


def shard(batch):
    n = jax.local_device_count()
    return jax.tree.map(lambda x: x.reshape((n, -1) + x.shape[1:]), batch)


def batches(seed, size):
    random = np.random.RandomState(seed)
    centers = random.randn(3 * CLASSES, FEATURES)
    while True:
        cluster = random.randint(len(centers), size=size)
        x = centers[cluster] + 1.5 * random.randn(size, FEATURES)
        yield {"x": x.astype(np.float32), "y": (cluster % CLASSES).astype(np.int32)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log_every", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--checkpoint", default="")
    args = parser.parse_args()

    state = jax.device_put_replicated(init_state(0), jax.local_devices())
    data = batches(1, args.batch_size)

    started = 0.0
    for step in range(args.steps):
        state, metrics = train_step(state, shard(next(data)))
        if step % args.log_every == 0:
            print("step %4d  loss %.4f" % (step, float(metrics["loss"][0])))
        if step == 4:
            started = time.time()  # the first steps compile
    loss = float(metrics["loss"][0])
    seconds = time.time() - started

    held_out = next(data)
    correct = p_eval_step(state, shard(held_out))
    print("accuracy %.1f %%" % (100 * float(correct[0]) / held_out["y"].size))
    if args.checkpoint:
        params = jax.tree.map(lambda x: np.asarray(x[0]), state["params"])
        with open(args.checkpoint, "wb") as file:
            pickle.dump(params, file)
    print(
        "done: %d steps, loss %.6f, %.1f steps/s" % (args.steps, loss, (args.steps - 5) / seconds)
    )


if __name__ == "__main__":
    main()
