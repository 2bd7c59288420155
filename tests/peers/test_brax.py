"""brax: its trainers on the `fast` environment."""

import jax
import pytest
from results import NOT_HERE, as_numpy, assert_same_bits

pytest.importorskip("brax", reason=NOT_HERE)

from brax import envs
from brax.training.agents.apg import train as apg
from brax.training.agents.ars import train as ars
from brax.training.agents.ppo import train as ppo
from brax.training.agents.sac import train as sac

pytestmark = [pytest.mark.needs_devices(4), pytest.mark.slow]

STEPS = 2**11
TRAINERS = {
    "ppo": (
        ppo.train,
        {
            "num_timesteps": STEPS,
            "episode_length": 128,
            "num_envs": 32,
            "batch_size": 32,
            "num_minibatches": 4,
            "num_updates_per_batch": 2,
            "unroll_length": 5,
            "num_evals": 2,
            "normalize_observations": True,
        },
    ),
    "sac": (
        sac.train,
        {
            "num_timesteps": 2**9,
            "episode_length": 128,
            "num_envs": 32,
            "batch_size": 32,
            "grad_updates_per_step": 2,
            "num_evals": 2,
            "min_replay_size": 128,
            "max_replay_size": 1024,
            "normalize_observations": True,
        },
    ),
    "apg": (
        apg.train,
        {
            "episode_length": 32,
            "num_envs": 32,
            "num_evals": 2,
            "policy_updates": 2,
            "horizon_length": 8,
            "normalize_observations": True,
        },
    ),
    "ars": (
        ars.train,
        {
            "num_timesteps": STEPS,
            "episode_length": 32,
            "number_of_directions": 8,
            "normalize_observations": True,
        },
    ),
}


def train(name):
    """Trains to the end; returns the parameters, and the metrics that are no times."""
    trainer, arguments = TRAINERS[name]
    _, params, metrics = trainer(envs.get_environment("fast"), seed=2, **arguments)
    timed = ("sps", "time")
    return as_numpy([params, {k: v for k, v in metrics.items() if not k.endswith(timed)}])


@pytest.mark.parametrize("name", TRAINERS)
def test_trainer_ends_with_what_it_ends_with_under_jax_pmap(installed, with_jax_pmap, name):
    params, metrics = train(name)
    assert metrics["eval/episode_reward"].shape == ()
    expected_params, expected_metrics = with_jax_pmap(train, name)
    assert_same_bits(jax.tree.leaves(params), jax.tree.leaves(expected_params))
    assert_same_bits(metrics, expected_metrics)
