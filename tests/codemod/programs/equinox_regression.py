"""An Equinox model: its arrays are stacked and mapped, the rest is closed over."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Mixture(eqx.Module):
    experts: list
    gate: eqx.nn.Linear
    temperature: float = eqx.field(static=True)

    def __init__(self, key, temperature=0.7):
        keys = jax.random.split(key, 3)
        self.experts = [eqx.nn.MLP(2, 1, 6, 1, key=k) for k in keys[:2]]
        self.gate = eqx.nn.Linear(2, 2, key=keys[2])
        self.temperature = temperature

    def __call__(self, x):
        weights = jax.nn.softmax(self.gate(x) / self.temperature)
        return sum(w * expert(x)[0] for w, expert in zip(weights, self.experts, strict=True))


def make_step(static, optimizer):
    def loss_fn(arrays, x, y):
        model = eqx.combine(arrays, static)
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @functools.partial(jax.pmap, axis_name="data", donate_argnums=(0, 1))
    def step(arrays, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(arrays, x, y)
        grads = jax.lax.pmean(grads, "data")
        updates, opt_state = optimizer.update(grads, opt_state, arrays)
        return eqx.apply_updates(arrays, updates), opt_state, jax.lax.pmean(loss, "data")

    return step


def main():
    n = jax.local_device_count()
    model = Mixture(jax.random.PRNGKey(0))
    arrays, static = eqx.partition(model, eqx.is_array)
    optimizer = optax.adam(0.02)
    opt_state = optimizer.init(arrays)
    arrays, opt_state = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), (arrays, opt_state)
    )
    step = make_step(static, optimizer)
    rng = np.random.RandomState(0)
    losses = []
    for _ in range(4):
        x = rng.uniform(-1, 1, size=(n, 8, 2)).astype(np.float32)
        y = np.where(x[..., 0] > 0, x[..., 1], -x[..., 1])
        arrays, opt_state, loss = step(arrays, opt_state, x, y)
        losses.append(float(loss[0]))
    trained = eqx.combine(jax.tree.map(lambda x: x[0], arrays), static)
    grid = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    fitted = np.asarray(jax.vmap(trained)(grid))
    print("losses", losses, "fitted", fitted)
    return {"losses": losses, "fitted": fitted}


if __name__ == "__main__":
    main()
