"""An online and a target network: the target follows, its statistics stay apart."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils, struct
from flax.core import FrozenDict


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(8)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.7, axis_name="i")(x)
        return nn.Dense(4)(nn.relu(x))


@struct.dataclass
class State:
    step: int
    online: FrozenDict
    target: FrozenDict
    batch_stats: FrozenDict
    opt_state: optax.OptState


def normalised(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def augment(key, x):
    return x * jax.random.bernoulli(key, 0.8, x.shape)


def train_step(tx, model, state, x, key):
    views = [augment(k, x) for k in jax.random.split(key)]

    def loss_fn(online):
        variables = {"params": online, "batch_stats": state.batch_stats}
        out, updates = model.apply(variables, views[0], mutable=["batch_stats"])
        target_variables = {"params": state.target, "batch_stats": state.batch_stats}
        goal, _ = model.apply(target_variables, views[1], mutable=["batch_stats"])
        goal = jax.lax.stop_gradient(goal)
        loss = -jnp.mean(jnp.sum(normalised(out) * normalised(goal), -1))
        return loss, updates["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.online)
    grads = jax.lax.pmean(grads, axis_name="i")
    updates, opt_state = tx.update(grads, state.opt_state, state.online)
    online = optax.apply_updates(state.online, updates)
    tau = 1 - 0.1 * (jnp.cos(jnp.pi * state.step / 10) + 1) / 2
    target = jax.tree.map(lambda t, o: tau * t + (1 - tau) * o, state.target, online)
    state = State(state.step + 1, online, target, batch_stats, opt_state)
    return state, jax.lax.pmean({"loss": loss, "tau": tau}, axis_name="i")


def main():
    n = jax.local_device_count()
    model, tx = Encoder(), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.2))
    variables = model.init(jax.random.PRNGKey(0), jnp.ones((2, 5)), train=False)
    params = variables["params"]
    state = State(
        jnp.zeros((), jnp.int32), params, params, variables["batch_stats"], tx.init(params)
    )
    state = jax_utils.replicate(state, jax.local_devices())
    step_fn = functools.partial(train_step, tx, model)
    p_step = jax.pmap(step_fn, axis_name="i", donate_argnums=0)
    rng = jax.random.PRNGKey(1)
    log = []
    for number in range(4):
        x = np.random.RandomState(number).normal(size=(n, 6, 5)).astype(np.float32)
        rng, *keys = jax.random.split(rng, n + 1)
        state, metrics = p_step(state, x, jnp.asarray(keys))
        log.append(jax_utils.unreplicate(metrics))
    log = jax.device_get(log)
    print(log)
    final = jax_utils.unreplicate(state)
    return {"log": log, "target": final.target, "stats": final.batch_stats}


if __name__ == "__main__":
    main()
