"""Clients with data of different sizes train on their own and are averaged by weight."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]


def client_loss(params: Params, x, y, mask):
    logit = x @ params["w"] + params["b"]
    loss = jnp.logaddexp(0.0, logit) - y * logit
    return jnp.sum(loss * mask) / jnp.maximum(mask.sum(), 1)


def local_training(params: Params, x, y, mask, n_steps: int) -> Params:
    def step(_, p):
        grads = jax.grad(client_loss)(p, x, y, mask)
        return jax.tree.map(lambda a, g: a - 0.5 * g, p, grads)

    return jax.lax.fori_loop(0, n_steps, step, params)


def federated_round(params: Params, x, y, mask, is_chosen, *, n_steps: int):
    """One round: the chosen clients train, the server's average goes back to all."""
    local = local_training(params, x, y, mask, n_steps)
    weight = mask.sum() * is_chosen
    total = jax.lax.psum(weight, "clients")
    delta = jax.tree.map(lambda new, old: (new - old) * weight / total, local, params)
    params = jax.tree.map(jnp.add, params, jax.lax.psum(delta, "clients"))
    return params, {"loss": client_loss(params, x, y, mask), "weight": weight}


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    sizes = rng.randint(3, 12, size=n)
    most = sizes.max()
    x = rng.normal(size=(n, most, 3)).astype(np.float32) + np.arange(n)[:, None, None] / 10
    y = (x.sum(-1) > 0.5).astype(np.float32)
    mask = (np.arange(most) < sizes[:, None]).astype(np.float32)
    run_round = jax.pmap(functools.partial(federated_round, n_steps=3), axis_name="clients")

    params = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
    params = jax.tree.map(lambda p: jnp.broadcast_to(p, (n,) + p.shape), params)
    rounds = []
    for _ in range(3):
        chosen = (rng.uniform(size=n) < 0.6).astype(np.float32)
        chosen[0] = 1.0
        params, metrics = run_round(params, x.astype(np.float32), y, mask, chosen)
        rounds.append(jax.device_get(metrics))
    losses = [float(r["loss"].mean()) for r in rounds]
    print("mean loss of clients", losses)
    return {"rounds": rounds, "server": jax.tree.map(lambda p: np.asarray(p[0]), params)}


if __name__ == "__main__":
    main()
