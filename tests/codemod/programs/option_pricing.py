"""Monte Carlo prices of options; few paths a device, parameters broadcast, made where needed."""

import jax
import jax.numpy as jnp
import numpy as np


def payoff(path, kind, strike):
    if kind == "asian":
        return jnp.maximum(path.mean(-1) - strike, 0)
    if kind == "lookback":
        return path.max(-1) - strike
    return jnp.maximum(path[..., -1] - strike, 0)


def simulate(key, market, n_paths, n_steps, kind):
    dt = market["maturity"] / n_steps
    z = jax.random.normal(key, (n_paths, n_steps))
    drift = (market["rate"] - 0.5 * market["vol"] ** 2) * dt
    log_path = jnp.cumsum(drift + market["vol"] * jnp.sqrt(dt) * z, axis=-1)
    discounted = jnp.exp(-market["rate"] * market["maturity"]) * payoff(
        market["spot"] * jnp.exp(log_path), kind, market["strike"]
    )
    total, square, count = jax.lax.psum(
        (discounted.sum(), (discounted**2).sum(), discounted.size), "paths"
    )
    price = total / count
    return price, jnp.sqrt((square / count - price**2) / count)


class Pricer:
    def __init__(self, n_paths, n_steps):
        self.n_paths, self.n_steps = n_paths, n_steps

    def __call__(self, seed, market, kind):
        keys = jax.random.split(jax.random.PRNGKey(seed), jax.local_device_count())
        price, error = jax.pmap(
            lambda key, market: simulate(key, market, self.n_paths, self.n_steps, kind),
            axis_name="paths",
            in_axes=(0, None),
            out_axes=None,
        )(keys, market)
        return float(price), float(error)

    def greeks(self, seed, market):
        """Sensitivities by differentiating through the paths."""
        keys = jax.random.split(jax.random.PRNGKey(seed), jax.local_device_count())

        def local(key, market):
            grads = jax.grad(lambda m: simulate_local(key, m, self.n_paths, self.n_steps))(market)
            return jax.lax.pmean(grads, "paths")

        return jax.pmap(local, axis_name="paths", in_axes=(0, None))(keys, market)


def simulate_local(key, market, n_paths, n_steps):
    z = jax.random.normal(key, (n_paths,)) * jnp.sqrt(market["maturity"])
    growth = (market["rate"] - 0.5 * market["vol"] ** 2) * market["maturity"] + market["vol"] * z
    return jnp.mean(jnp.maximum(market["spot"] * jnp.exp(growth) - market["strike"], 0))


def main():
    market = {"spot": 100.0, "strike": 95.0, "rate": 0.02, "vol": 0.3, "maturity": 1.0}
    pricer = Pricer(n_paths=64, n_steps=6)
    prices = {kind: pricer(0, market, kind) for kind in ("european", "asian", "lookback")}
    greeks = jax.tree.map(lambda g: np.asarray(g[0]), pricer.greeks(1, market))
    print(prices, greeks)
    return {"prices": prices, "greeks": greeks}


if __name__ == "__main__":
    main()
