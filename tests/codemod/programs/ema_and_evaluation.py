"""Three mapped functions that share one stacked state: train, average, evaluate."""

import collections

import jax
import jax.numpy as jnp
import numpy as np

State = collections.namedtuple("State", ["step", "params", "ema", "rng"])


def forward(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


def make_state(rng):
    k1, k2, rng = jax.random.split(rng, 3)
    params = {
        "w1": jax.random.normal(k1, (4, 8)) / 2,
        "w2": jax.random.normal(k2, (8, 2)) / 3,
    }
    return State(jnp.zeros((), jnp.int32), params, params, rng)


def train_step(state, batch):
    rng, noise_rng = jax.random.split(state.rng)
    # Every device draws its own noise from the same key.
    noise_rng = jax.random.fold_in(noise_rng, jax.lax.axis_index("batch"))
    x = batch["x"] + 0.01 * jax.random.normal(noise_rng, batch["x"].shape)

    def loss_fn(params):
        return jnp.mean(jnp.square(forward(params, x) - batch["y"]))

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    return state._replace(step=state.step + 1, params=params, rng=rng), loss


def ema_step(state):
    decay = jnp.minimum(0.9, (1.0 + state.step) / (10.0 + state.step))
    ema = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, state.ema, state.params)
    return state._replace(ema=ema)


def eval_step(params, batch):
    error = jnp.sum(jnp.abs(forward(params, batch["x"]) - batch["y"]))
    return jax.lax.psum(error, "batch")


p_train = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
p_ema = jax.pmap(ema_step)
p_eval = jax.pmap(eval_step, axis_name="batch")


def batches(seed, count):
    rng = np.random.RandomState(seed)
    n = jax.local_device_count()
    for _ in range(count):
        x = rng.uniform(-1, 1, size=(n, 4, 4)).astype(np.float32)
        yield {"x": x, "y": np.stack([x.sum(-1), x.prod(-1)], axis=-1)}


def main():
    state = make_state(jax.random.PRNGKey(7))
    state = jax.device_put_replicated(state, jax.local_devices())
    history = []
    for batch in batches(0, 5):
        state, loss = p_train(state, batch)
        state = p_ema(state)
        history.append(float(loss[0]))

    errors = {"params": 0.0, "ema": 0.0}
    for batch in batches(1, 2):
        for name in errors:
            errors[name] += float(p_eval(getattr(state, name), batch)[0])
    print("losses", history)
    print("errors", errors)
    final = jax.device_get(jax.tree.map(lambda x: x[0], state))
    return {"history": history, "errors": errors, "state": final._asdict()}


if __name__ == "__main__":
    main()
