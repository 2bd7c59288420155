"""Replica exchange: every device walks at its own temperature and swaps with a neighbour."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

AXIS = "temperature"


def energy(x):
    """Two wells with a wall between them."""
    return 4.0 * (x**2 - 1.0) ** 2 + 0.3 * x


def metropolis(x, beta, key):
    key_step, key_u = random.split(key)
    proposal = x + 0.5 * random.normal(key_step, x.shape)
    accept = jnp.log(random.uniform(key_u, x.shape)) < beta * (energy(x) - energy(proposal))
    return jnp.where(accept, proposal, x)


def swap(x, beta, key, parity, n):
    """Neighbours (0,1), (2,3), ... or (1,2), (3,4), ... trade places by the usual odds."""
    index = lax.axis_index(AXIS)
    up = [(i, (i + 1) % n) for i in range(n)]
    down = [(i, (i - 1) % n) for i in range(n)]
    from_below, from_above = lax.ppermute(x, AXIS, up), lax.ppermute(x, AXIS, down)
    beta_below, beta_above = lax.ppermute(beta, AXIS, up), lax.ppermute(beta, AXIS, down)
    is_lower = (index + parity) % 2 == 0
    partner_x = jnp.where(is_lower, from_above, from_below)
    partner_beta = jnp.where(is_lower, beta_above, beta_below)
    has_partner = jnp.where(is_lower, index < n - 1, index > 0)
    log_odds = (beta - partner_beta) * (energy(x) - energy(partner_x))
    # The key is the same everywhere, so that both partners draw the same number.
    pair = jnp.where(is_lower, index, index - 1)
    u = random.uniform(random.fold_in(key, pair), x.shape)
    accept = has_partner & (jnp.log(u) < log_odds)
    return jnp.where(accept, partner_x, x), accept


def make_run(n, n_rounds):
    def run(x, beta, key):
        def one_round(x, args):
            number, key = args
            key_move, key_swap = random.split(key)
            x = metropolis(x, beta, random.fold_in(key_move, lax.axis_index(AXIS)))
            x, swapped = swap(x, beta, key_swap, number % 2, n)
            return x, (x, swapped)

        rounds = (jnp.arange(n_rounds), random.split(key, n_rounds))
        return lax.scan(one_round, x, rounds)

    return jax.pmap(run, axis_name=AXIS, in_axes=(0, 0, None), out_axes=(0, (1, 0)))


def main():
    n = jax.local_device_count()
    run = make_run(n, n_rounds=60)
    betas = np.geomspace(3.0, 0.1, n).astype(np.float32)
    x0 = np.ones((n, 4), np.float32)
    last, (trace, swapped) = run(x0, betas, random.PRNGKey(11))
    assert trace.shape == (60, n, 4)
    cold = np.asarray(trace[:, 0])
    result = {
        "last": np.asarray(last),
        "left_well": (cold < 0).mean(0),
        "swap_rate": np.asarray(swapped).mean((1, 2)),
    }
    print(result["left_well"], result["swap_rate"])
    return {**result, "cold": cold}


if __name__ == "__main__":
    main()
