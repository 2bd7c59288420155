"""PPO on a small pendulum: rollouts and updates on every device, gradients averaged."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HORIZON, ENVS, EPOCHS = 8, 4, 2
GAMMA, LAMBDA, CLIP = 0.95, 0.9, 0.2


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    value: jax.Array


def env_reset(rng):
    return jax.random.uniform(rng, (2,), minval=-1.0, maxval=1.0)


def env_step(state, action):
    angle, speed = state
    speed = 0.99 * speed + 0.1 * jnp.sin(angle) + 0.1 * jnp.clip(action, -2, 2)
    angle = angle + 0.1 * speed
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * action**2)
    return jnp.stack([angle, speed]), reward


def policy(params, obs):
    h = jnp.tanh(obs @ params["w"])
    return (h @ params["mean"]).squeeze(-1), (h @ params["value"]).squeeze(-1)


def log_prob(mean, log_std, action):
    return -0.5 * ((action - mean) / jnp.exp(log_std)) ** 2 - log_std


def rollout(params, env_states, rng):
    def step(carry, rng):
        obs = carry
        mean, value = policy(params, obs)
        noise = jax.random.normal(rng, mean.shape)
        action = mean + jnp.exp(params["log_std"]) * noise
        next_obs, reward = jax.vmap(env_step)(obs, action)
        logp = log_prob(mean, params["log_std"], action)
        return next_obs, Transition(obs, action, logp, reward, value)

    env_states, traj = jax.lax.scan(step, env_states, jax.random.split(rng, HORIZON))
    return env_states, traj, policy(params, env_states)[1]


def advantages(traj, last_value):
    def backwards(carry, t):
        gae, next_value = carry
        delta = t.reward + GAMMA * next_value - t.value
        gae = delta + GAMMA * LAMBDA * gae
        return (gae, t.value), gae

    init = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(backwards, init, traj, reverse=True)[1]


def ppo_loss(params, traj, adv, returns):
    mean, value = policy(params, traj.obs)
    ratio = jnp.exp(log_prob(mean, params["log_std"], traj.action) - traj.log_prob)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    return -jnp.mean(jnp.minimum(ratio * adv, clipped * adv)) + 0.5 * jnp.mean(
        (value - returns) ** 2
    )


@functools.partial(jax.pmap, axis_name="device", donate_argnums=(0, 1, 2))
def train_iteration(params, env_states, rng):
    rng, rollout_rng = jax.random.split(rng)
    env_states, traj, last_value = rollout(params, env_states, rollout_rng)
    adv = advantages(traj, last_value)
    returns = adv + traj.value
    mean = jax.lax.pmean(adv.mean(), "device")
    std = jnp.sqrt(jax.lax.pmean(jnp.mean((adv - mean) ** 2), "device"))
    adv = (adv - mean) / (std + 1e-6)

    def epoch(params, _):
        loss, grads = jax.value_and_grad(ppo_loss)(params, traj, adv, returns)
        grads = jax.lax.pmean(grads, "device")
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss

    params, losses = jax.lax.scan(epoch, params, None, length=EPOCHS)
    metrics = {"loss": jax.lax.pmean(losses[-1], "device"), "reward": traj.reward.mean()}
    return params, env_states, rng, metrics


def main():
    n = jax.local_device_count()
    key_params, key_env, key_run = jax.random.split(jax.random.PRNGKey(0), 3)
    k = jax.random.split(key_params, 3)
    params = {
        "w": jax.random.normal(k[0], (2, 8)),
        "mean": 0.1 * jax.random.normal(k[1], (8, 1)),
        "value": 0.1 * jax.random.normal(k[2], (8, 1)),
        "log_std": jnp.zeros(()),
    }
    params = jax.device_put_replicated(params, jax.local_devices())
    env_states = jax.pmap(jax.vmap(env_reset))(jax.random.split(key_env, (n, ENVS)))
    rngs = jax.random.split(key_run, n)
    log = []
    for _ in range(3):
        params, env_states, rngs, metrics = train_iteration(params, env_states, rngs)
        log.append((float(metrics["loss"][0]), float(jnp.mean(metrics["reward"]))))
    print(log)
    final = jax.tree.map(lambda x: np.asarray(x[0]), params)
    return {"log": log, "params": final, "envs": np.asarray(env_states)}


if __name__ == "__main__":
    main()
