"""A neural differential equation in Equinox; one ensemble member a device, then a common one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Field(eqx.Module):
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=key)

    def __call__(self, y):
        return self.mlp(y)


def integrate(field, y0, dt, n_steps):
    def rk4(y, _):
        k1 = field(y)
        k2 = field(y + dt / 2 * k1)
        k3 = field(y + dt / 2 * k2)
        k4 = field(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return jax.lax.scan(rk4, y0, None, length=n_steps)[1]


def loss_fn(params, static, y0, target):
    field = eqx.combine(params, static)
    path = jax.vmap(integrate, in_axes=(None, 0, None, None))(field, y0, 0.1, target.shape[1])
    return jnp.mean((path - target) ** 2)


def member_step(params, static, y0, target, lr):
    loss, grads = jax.value_and_grad(loss_fn)(params, static, y0, target)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss


def consensus(params):
    return jax.lax.pmean(params, "members")


def main():
    n = jax.local_device_count()
    keys = jax.random.split(jax.random.PRNGKey(0), n)
    _, static = eqx.partition(Field(keys[0]), eqx.is_inexact_array)
    p_init = jax.pmap(lambda key: eqx.filter(Field(key), eqx.is_inexact_array))
    params = p_init(keys)
    p_step = jax.pmap(
        lambda p, y0, target, lr: member_step(p, static, y0, target, lr),
        in_axes=(0, None, None, 0),
    )
    p_consensus = jax.pmap(consensus, axis_name="members")

    angle = np.linspace(0, np.pi, 4, dtype=np.float32)
    y0 = np.stack([np.cos(angle), np.sin(angle)], -1)
    times = 0.1 * np.arange(1, 7, dtype=np.float32)
    target = np.stack([np.cos(angle[:, None] + times), np.sin(angle[:, None] + times)], -1)
    rates = np.geomspace(0.05, 0.5, n).astype(np.float32)
    history = []
    for _ in range(4):
        params, losses = p_step(params, y0, target, rates)
        history.append(np.asarray(losses))
    mean = p_consensus(params)
    field = eqx.combine(jax.tree.map(lambda x: x[0], mean), static)
    path = np.asarray(integrate(field, y0[0], 0.1, 6))
    print("losses", history[-1])
    return {"history": np.stack(history), "path": path}


if __name__ == "__main__":
    main()
