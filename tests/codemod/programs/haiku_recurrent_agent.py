"""A recurrent agent in Haiku learns from unrolls; a queue of trajectories feeds the learner."""

import collections
import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

Trajectory = collections.namedtuple("Trajectory", "observation action reward discount")


class Agent(hk.RNNCore):
    def __init__(self, n_actions):
        super().__init__(name="agent")
        self._core = hk.GRU(6)
        self._head = hk.Linear(n_actions + 1)

    def initial_state(self, batch_size):
        return self._core.initial_state(batch_size)

    def __call__(self, x, state):
        out, state = self._core(x, state)
        head = self._head(out)
        return (head[..., :-1], head[..., -1]), state


@hk.without_apply_rng
@hk.transform
def unroll(observations):
    agent = Agent(n_actions=3)
    state = agent.initial_state(observations.shape[1])
    return hk.dynamic_unroll(agent, observations, state)[0]


class Learner:
    def __init__(self, optimizer):
        self._opt = optimizer
        self._update = functools.partial(jax.pmap, axis_name="learner", donate_argnums=(0, 1))(
            self._update_fn
        )

    def init(self, key, observations):
        params = unroll.init(key, observations)
        opt_state = self._opt.init(params)
        broadcast = functools.partial(jax.device_put_replicated, devices=jax.local_devices())
        return broadcast(params), broadcast(opt_state)

    def _loss(self, params, t):
        logits, values = unroll.apply(params, t.observation)

        def backwards(following, step):
            reward, discount = step
            following = reward + discount * following
            return following, following

        _, returns = jax.lax.scan(
            backwards, jnp.zeros(values.shape[1]), (t.reward, t.discount), reverse=True
        )
        advantages = jax.lax.stop_gradient(returns - values)
        log_probs = -optax.softmax_cross_entropy_with_integer_labels(logits, t.action)
        return jnp.mean(0.5 * (returns - values) ** 2 - log_probs * advantages)

    def _update_fn(self, params, opt_state, trajectory):
        loss, grads = jax.value_and_grad(self._loss)(params, trajectory)
        grads = jax.lax.pmean(grads, "learner")
        updates, opt_state = self._opt.update(grads, opt_state, params)
        logs = {"loss": jax.lax.pmean(loss, "learner"), "norm": optax.global_norm(grads)}
        return optax.apply_updates(params, updates), opt_state, logs

    def update(self, params, opt_state, trajectories):
        stacked = jax.tree.map(lambda *xs: np.stack(xs), *trajectories)
        params, opt_state, logs = self._update(params, opt_state, stacked)
        return params, opt_state, jax.device_get(jax.tree.map(lambda x: x[0], logs))


def act(rng, n):
    shape = (5, 4)
    for _ in range(n):
        observation = rng.normal(size=(*shape, 2)).astype(np.float32)
        action = rng.randint(0, 3, size=shape)
        reward = (action == (observation[..., 0] > 0)).astype(np.float32)
        yield Trajectory(observation, action, reward, np.full(shape, 0.9, np.float32))


def main():
    n = jax.local_device_count()
    learner = Learner(optax.rmsprop(0.02))
    params, opt_state = learner.init(jax.random.PRNGKey(0), np.zeros((5, 4, 2), np.float32))
    queue = collections.deque(act(np.random.RandomState(0), 3 * n))
    logs = []
    while queue:
        trajectories = [queue.popleft() for _ in range(n)]
        params, opt_state, log = learner.update(params, opt_state, trajectories)
        logs.append(log)
    print(logs)
    return {"logs": logs, "params": jax.tree.map(lambda x: np.asarray(x[0]), params)}


if __name__ == "__main__":
    main()
