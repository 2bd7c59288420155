"""Actors on half of the devices, learners on the other half; weights and data go between them."""

import jax
import jax.numpy as jnp
import numpy as np

DEVICES = jax.local_devices()
ACTORS, LEARNERS = DEVICES[: len(DEVICES) // 2], DEVICES[len(DEVICES) // 2 :]


def act(weights, state, key):
    """A bandit with context: picks an arm, sees its reward."""
    key_context, key_arm, key_noise = jax.random.split(key, 3)
    context = jax.random.normal(key_context, (6, 3))
    arms = jax.random.categorical(key_arm, context @ weights)
    best = jnp.argmax(context, axis=-1)
    reward = (arms == best) + 0.1 * jax.random.normal(key_noise, (6,))
    return state + reward.sum(), {"context": context, "arms": arms, "reward": reward}


def learn(weights, baseline, data):
    def loss_fn(weights):
        log_probs = jax.nn.log_softmax(data["context"] @ weights)
        chosen = jnp.take_along_axis(log_probs, data["arms"][:, None], axis=-1)[:, 0]
        return -jnp.mean(chosen * (data["reward"] - baseline))

    grads = jax.lax.pmean(jax.grad(loss_fn)(weights), axis_name="learners")
    reward = jax.lax.pmean(data["reward"].mean(), axis_name="learners")
    return weights - 0.5 * grads, 0.9 * baseline + 0.1 * reward


p_act = jax.pmap(act, devices=ACTORS)
p_learn = jax.pmap(learn, axis_name="learners", devices=LEARNERS)


def send(tree, devices):
    """Takes stacked rows through the host to other devices, one each."""
    host = jax.device_get(tree)
    rows = [jax.tree.map(lambda x: x[i], host) for i in range(len(devices))]
    return jax.device_put_sharded(rows, devices)


def main():
    weights = np.zeros((3, 3), np.float32)
    learner_weights = jax.device_put_replicated(weights, LEARNERS)
    baseline = jax.device_put_replicated(np.float32(0), LEARNERS)
    actor_weights = jax.device_put_replicated(weights, ACTORS)
    score = jax.device_put_replicated(np.float32(0), ACTORS)
    key = jax.random.PRNGKey(2)
    baselines = []
    for _ in range(4):
        key, *actor_keys = jax.random.split(key, len(ACTORS) + 1)
        score, data = p_act(actor_weights, score, jnp.stack(actor_keys))
        learner_weights, baseline = p_learn(learner_weights, baseline, send(data, LEARNERS))
        actor_weights = jax.device_put_replicated(jax.device_get(learner_weights[0]), ACTORS)
        baselines.append(float(baseline[0]))
    print("baseline", baselines, "score", np.asarray(score))
    return {
        "baselines": baselines,
        "score": np.asarray(score),
        "weights": np.asarray(learner_weights[0]),
    }


if __name__ == "__main__":
    main()
