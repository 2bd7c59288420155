"""A member of the population on each device; the host lets the best replace the worst."""

import jax
import jax.numpy as jnp
import numpy as np


def init_member(key):
    return {"w": 0.1 * jax.random.normal(key, (4,)), "m": jnp.zeros(4)}


def member_loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def train_member(member, hyper, x, y):
    """A few steps of momentum with this member's own settings."""

    def step(member, _):
        grads = jax.grad(member_loss)(member["w"], x, y)
        m = hyper["momentum"] * member["m"] + grads
        return {"w": member["w"] - hyper["lr"] * m, "m": m}, None

    member, _ = jax.lax.scan(step, member, None, length=3)
    return member, member_loss(member["w"], x, y)


init_population = jax.pmap(init_member)
train_population = jax.pmap(train_member, in_axes=(0, 0, None, None))


def exploit_and_explore(population, hypers, losses, rng):
    """The worst quarter copies the best quarter, with settings changed a little."""
    order = np.argsort(losses)
    quarter = len(order) // 4
    source = np.arange(len(order))
    source[order[-quarter:]] = order[:quarter]
    copied = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[source]), population)
    changed = source != np.arange(len(order))
    new_hypers = {}
    for name, values in hypers.items():
        factor = np.where(changed, rng.choice([0.8, 1.2], size=len(order)), 1.0)
        new_hypers[name] = (values[source] * factor).astype(np.float32)
    new_hypers["momentum"] = np.minimum(new_hypers["momentum"], np.float32(0.99))
    return copied, new_hypers, source


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    true_w = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    x = rng.normal(size=(16, 4)).astype(np.float32)
    y = x @ true_w
    population = init_population(jax.random.split(jax.random.PRNGKey(1), n))
    hypers = {
        "lr": np.geomspace(1e-3, 0.2, n).astype(np.float32),
        "momentum": np.linspace(0, 0.9, n).astype(np.float32),
    }
    lineage, curves = [], []
    for generation in range(4):
        population, losses = train_population(population, hypers, x, y)
        losses = np.asarray(losses)
        curves.append(losses)
        print(f"generation {generation}: best {losses.min():.5f}, worst {losses.max():.5f}")
        population, hypers, source = exploit_and_explore(population, hypers, losses, rng)
        lineage.append(source)
    best = int(np.argmin(curves[-1]))
    return {
        "curves": np.stack(curves),
        "lineage": np.stack(lineage),
        "hypers": hypers,
        "best": np.asarray(population["w"][best]),
    }


if __name__ == "__main__":
    main()
