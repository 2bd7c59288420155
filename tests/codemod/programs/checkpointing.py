"""Trains, saves the first replica, restores it on all devices and goes on from there."""

import os
import pickle
import tempfile

import jax
import jax.numpy as jnp
import numpy as np


def unreplicate(tree):
    """Takes the first replica to the host."""
    return jax.device_get(jax.tree_util.tree_map(lambda x: x[0], tree))


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def save(folder, state):
    state = unreplicate(state)
    path = os.path.join(folder, f"checkpoint_{int(state['step'])}.pkl")
    with open(path + ".tmp", "wb") as f:
        pickle.dump(state, f)
    os.replace(path + ".tmp", path)
    return path


def restore(folder, state):
    """Returns the latest checkpoint on all devices, or the state as it is if there is none."""
    found = sorted(os.listdir(folder), key=lambda name: int(name.split("_")[1].split(".")[0]))
    if not found:
        return state
    with open(os.path.join(folder, found[-1]), "rb") as f:
        return replicate(pickle.load(f))


def step_fn(state, batch):
    def loss_fn(params):
        return jnp.mean((jnp.tanh(batch @ params["w"]) - params["target"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    grads = jax.lax.pmean(grads, axis_name="i")
    moment = jax.tree_util.tree_map(lambda m, g: 0.9 * m + g, state["moment"], grads)
    params = jax.tree_util.tree_map(lambda p, m: p - 0.1 * m, state["params"], moment)
    return {"params": params, "moment": moment, "step": state["step"] + 1}, loss


p_step = jax.pmap(step_fn, axis_name="i")


def train(state, until):
    n = jax.local_device_count()
    losses = []
    for step in range(int(state["step"][0]), until):
        batch = np.random.RandomState(step).normal(size=(n, 4, 3)).astype(np.float32)
        state, loss = p_step(state, batch)
        losses.append(np.asarray(loss))
    return state, losses


def main():
    params = {"w": np.eye(3, dtype=np.float32) / 2, "target": np.full(3, 0.3, np.float32)}
    state = {
        "params": params,
        "moment": jax.tree_util.tree_map(np.zeros_like, params),
        "step": np.int32(0),
    }
    with tempfile.TemporaryDirectory() as folder:
        fresh = restore(folder, replicate(state))
        halfway, first = train(fresh, until=3)
        save(folder, halfway)
        resumed, second = train(restore(folder, fresh), until=6)
        straight, _ = train(replicate(state), until=6)
        save(folder, resumed)
        names = sorted(os.listdir(folder))
    final = unreplicate(resumed)
    same = jax.tree_util.tree_map(np.array_equal, final, unreplicate(straight))
    assert all(jax.tree_util.tree_leaves(same)), "resuming changed the course"
    print(names, "losses", [float(loss.mean()) for loss in first + second])
    return {"final": final, "losses": np.stack(first + second)}


if __name__ == "__main__":
    main()
