"""numpyro: chains in parallel, one a device."""

import jax
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_same_bits

pytest.importorskip("numpyro", reason=NOT_HERE)

import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, MCMC, NUTS

pytestmark = pytest.mark.needs_devices(8)

KERNELS = {"nuts": NUTS, "hmc": HMC}
TREATED = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools():
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("treated", dist.Normal(effect, ERRORS), obs=TREATED)


def draw(kernel="nuts", chains=8, progress_bar=False):
    """Warms up, draws, and draws on from where the chains stand."""
    mcmc = MCMC(
        KERNELS[kernel](eight_schools),
        num_warmup=20,
        num_samples=20,
        num_chains=chains,
        chain_method="parallel",
        progress_bar=progress_bar,
    )
    mcmc.run(jax.random.key(0), extra_fields=("potential_energy", "num_steps"))
    first = mcmc.get_samples(group_by_chain=True)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key)
    return as_numpy([first, fields, mcmc.get_samples(group_by_chain=True)])


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "chains"), [("nuts", 8), ("hmc", 3)])
def test_parallel_chains_draw_what_they_draw_with_jax_pmap(
    installed, with_jax_pmap, kernel, chains
):
    drawn = draw(kernel, chains)
    assert drawn[0]["effect"].shape == (chains, 20, 8)
    assert_same_bits(drawn, with_jax_pmap(draw, kernel, chains))


@pytest.mark.slow
def test_chains_with_a_progress_bar_draw_what_they_draw_without(installed):
    assert_same_bits(draw(progress_bar=True), draw())
