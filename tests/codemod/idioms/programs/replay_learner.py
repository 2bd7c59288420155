"""A learner with a target network on given devices; priorities go back to its replay."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "learner"


class LearnerState(NamedTuple):
    params: Any
    old_params: Any
    moment: Any
    steps: Any


class Replay:
    """Samples by priority."""

    def __init__(self, size):
        self._rng = np.random.RandomState(0)
        self.observations = self._rng.normal(size=(size, 4)).astype(np.float32)
        self.rewards = np.tanh(self.observations[:, 0])
        self.priorities = np.ones(size)

    def sample(self, batch_size):
        p = self.priorities / self.priorities.sum()
        keys = self._rng.choice(len(p), size=batch_size, p=p)
        return keys, {"observation": self.observations[keys], "reward": self.rewards[keys]}

    def update_priorities(self, keys, priorities):
        assert priorities.shape == keys.shape
        self.priorities[keys] = np.abs(priorities).astype(np.float64).round(3) + 0.1


def put_parts(tree, devices):
    """Splits the first axis and puts every part to its device."""
    return jax.tree.map(lambda x: jax.device_put_sharded(np.split(x, len(devices)), devices), tree)


def put_copies(tree, devices):
    return jax.tree.map(lambda x: jax.device_put_sharded([x] * len(devices), devices), tree)


def fetch_first(tree):
    return jax.device_get(jax.tree.map(lambda leaf: leaf[0], tree))


class Learner:
    def __init__(self, replay, params, devices=None, period=2):
        def update(state, sample):
            def loss_fn(params):
                value = jnp.tanh(sample["observation"] @ params["w1"]) @ params["w2"]
                target = jnp.tanh(sample["observation"] @ state.old_params["w1"])
                target = sample["reward"] + 0.5 * target @ state.old_params["w2"]
                error = jax.lax.stop_gradient(target) - value
                return jnp.mean(error**2), error

            (loss, error), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
            grads = jax.lax.pmean(grads, axis_name=AXIS)
            moment = jax.tree.map(lambda m, g: 0.5 * m + g, state.moment, grads)
            params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, moment)
            steps = state.steps + 1
            old_params = jax.tree.map(
                lambda new, old: jnp.where(steps % period == 0, new, old),
                params,
                state.old_params,
            )
            metrics = jax.lax.pmean({"loss": loss}, axis_name=AXIS)
            return LearnerState(params, old_params, moment, steps), (metrics, error)

        self._devices = devices or jax.local_devices()
        self._replay = replay
        self._update = jax.pmap(update, AXIS, devices=self._devices)
        state = LearnerState(params, params, jax.tree.map(np.zeros_like, params), np.int32(0))
        self._state = put_copies(state, self._devices)

    def step(self):
        keys, sample = self._replay.sample(32)
        sample = put_parts(sample, self._devices)
        self._state, (metrics, priorities) = self._update(self._state, sample)
        self._replay.update_priorities(keys, np.asarray(priorities).reshape(-1))
        return {name: float(value) for name, value in fetch_first(metrics).items()}

    def variables(self, names):
        by_name = {"policy": self._state.old_params, "critic": self._state.params}
        return [fetch_first(by_name[name]) for name in names]

    def save(self):
        return fetch_first(self._state)

    def load(self, state):
        self._state = put_copies(state, self._devices)


def main():
    rng = np.random.RandomState(1)
    params = {
        "w1": rng.normal(size=(4, 3)).astype(np.float32),
        "w2": rng.normal(size=3).astype(np.float32),
    }
    replay = Replay(64)
    learner = Learner(replay, params, devices=jax.devices()[::-1])
    losses = [learner.step()["loss"] for _ in range(3)]
    saved = learner.save()
    learner = Learner(replay, params, devices=jax.devices()[::-1])
    learner.load(saved)
    losses += [learner.step()["loss"] for _ in range(2)]
    print("losses", losses)
    return {
        "losses": losses,
        "variables": learner.variables(["policy", "critic"]),
        "priorities": replay.priorities,
    }


if __name__ == "__main__":
    main()
