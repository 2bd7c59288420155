"""A program for several processes, as people wrote them: each has rows of its own. Sets RESULTS.

It is run with pmapx installed, and again after ``pmapx migrate``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

HERE, DEVICES = jax.process_index(), jax.local_device_count()
RNG = np.random.default_rng(HERE)


def replicate(tree):
    return jax.tree.map(lambda x: np.stack([x] * DEVICES), tree)


def loss_of(w, batch):
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2)


@functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state["w"], batch)
    grads = jax.lax.pmean(grads, "batch")
    new = {"w": state["w"] - 0.1 * grads, "n": state["n"] + 1}
    return new, jax.lax.pmean({"loss": loss}, axis_name="batch")


class Evaluator:
    def __init__(self, scale):
        self.scale = scale
        self.score = jax.pmap(self._score, "batch", in_axes=(None, 0), out_axes=(0, None))

    def _score(self, w, batch):
        own = loss_of(w, batch) * self.scale
        return own, jax.lax.psum(own, "batch")


TRACES = []


def summed(x):
    TRACES.append(1)
    return jax.lax.psum(x, "i")


def sum_over_hosts(x):
    return jax.pmap(summed, axis_name="i")(x)


def halved(x, by, more):
    return x * by, jax.lax.psum(more, "b")


def in_a_function():
    step = jax.pmap(halved, axis_name="b", in_axes=(0, None, 0), donate_argnums=0)
    near = jax.pmap(lambda x: jax.lax.psum(x, "d"), axis_name="d", devices=jax.local_devices())
    rows = np.arange(DEVICES * 2.0).reshape(DEVICES, 2) + HERE
    return step(jnp.asarray(rows, jnp.bfloat16), 0.5, rows), near(rows)


def batches():
    for _ in range(3):
        x = RNG.normal(size=(DEVICES * 4, 3)).astype(np.float32)
        batch = {"x": x, "y": x.sum(1) + HERE}
        yield jax.tree.map(lambda v: v.reshape((DEVICES, -1) + v.shape[1:]), batch)


def descended(w, batch):
    loss, grads = jax.value_and_grad(loss_of)(w, batch)
    return w - 0.1 * jax.lax.pmean(grads, "batch"), loss


def with_state_that_is_not_stacked():
    step = jax.pmap(descended, axis_name="batch", in_axes=(None, 0), out_axes=(None, 0))
    w = np.ones(3, np.float32)
    for batch in batches():
        w, losses = step(w, batch)
        w, losses = step(w, batch)
    return np.asarray(w), losses, jax.pmap(jnp.sin)(losses)


state = replicate({"w": np.ones(3, np.float32), "n": np.int32(0)})
for batch in batches():
    state, metrics = train_step(state, batch)
params = jax.tree.map(lambda x: x[0], state)["w"]
own, total = Evaluator(0.5).score(params, batch)
keys = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(0), HERE), DEVICES)
noise = jax.pmap(lambda key: jax.random.normal(key, (2,)) + jax.lax.axis_index("i"), "i")(keys)
flat = jax.pmap(lambda how, x: getattr(jnp, how)(x), static_broadcasted_argnums=0, out_axes=-1)
local = jax.pmap(lambda x: jax.lax.psum(x, "d"), axis_name="d", devices=jax.local_devices())
for _ in range(3):
    counted = sum_over_hosts(np.full((DEVICES, 2), HERE + 1.0, np.float32))

RESULTS = {
    "state": state,
    "metrics": metrics,
    "params": params,
    "own": own,
    "total": total,
    "noise": noise,
    "columns": flat("sin", keys.astype(np.float32)),
    "local": local(np.arange(DEVICES * 2.0).reshape(DEVICES, 2) + HERE),
    "counted": counted,
    "in a function": in_a_function(),
    "not stacked": with_state_that_is_not_stacked(),
    "traces": len(TRACES),
    "is_local": [x.is_fully_addressable for x in jax.tree.leaves((state, metrics, own, total))],
}
