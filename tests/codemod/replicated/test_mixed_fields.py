"""States of mixed fields: parameters are replicated, keys and environments are per device."""

import re

import pytest
from migrated import assert_same, rewritten, run_all

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.codemod.migration import migrate

HEAD = """\
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class RunnerState(NamedTuple):
    params: Any
    opt_state: Any
    key: jax.Array
    env_state: jax.Array


def loss_fn(params, states):
    return jnp.mean((states @ params["w"] + params["b"]) ** 2)


def updated(params, opt_state, grads):
    opt_state = jax.tree.map(lambda m, g: 0.9 * m + g, opt_state, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, opt_state), opt_state


def rollout(params, key, env_state):
    key, noise_key = jax.random.split(key)
    noise = 0.1 * jax.random.normal(noise_key, env_state.shape[:1])
    env_state = 0.5 * env_state + 0.1 * (env_state @ params["w"] + noise)[:, None]
    return key, env_state


def initial(n_devices):
    key = jax.random.PRNGKey(0)
    params = {"w": jnp.ones(4), "b": jnp.zeros(())}
    opt_state = jax.tree.map(jnp.zeros_like, params)
    keys = jax.random.split(key, n_devices)
    env_state = jax.random.normal(key, (n_devices * 2, 4)).reshape((n_devices, 2, 4))
    return params, opt_state, keys, env_state


"""
UNPACKED = (
    HEAD
    + """\
def train_step(runner_state):
    params, opt_state, key, env_state = runner_state
    key, env_state = rollout(params, key, env_state)
    grads = jax.lax.pmean(jax.grad(loss_fn)(params, env_state), axis_name="device")
    params, opt_state = updated(params, opt_state, grads)
    return RunnerState(params, opt_state, key, env_state), {"size": jnp.abs(env_state).sum()}


def main():
    params, opt_state, keys, env_state = initial(jax.local_device_count())
    params, opt_state = jax.device_put_replicated((params, opt_state), jax.local_devices())
    runner_state = RunnerState(params, opt_state, keys, env_state)
    p_step = jax.pmap(train_step, axis_name="device")
    sizes = []
    for _ in range(3):
        runner_state, metrics = p_step(runner_state)
        sizes.append(metrics["size"].mean())
    params = jax.tree.map(lambda x: x[0], runner_state.params)
    return params, runner_state.key, runner_state.env_state, sizes


RESULT = main()
"""
)
REPLACED = (
    HEAD
    + """\
def train_step(runner_state, rate):
    key, env_state = rollout(runner_state[0], runner_state.key, runner_state.env_state)
    grads = jax.lax.pmean(jax.grad(loss_fn)(runner_state.params, env_state), axis_name="device")
    params, opt_state = updated(runner_state.params, runner_state.opt_state, grads)
    return runner_state._replace(params=params, opt_state=opt_state, key=key, env_state=env_state)


def params_of(runner_state):
    return jax.tree.map(lambda x: x[0], runner_state.params)


def main():
    params, opt_state, keys, env_state = initial(jax.local_device_count())
    params = jax.device_put_replicated(params, jax.local_devices())
    opt_state = jax.device_put_replicated(opt_state, jax.local_devices())
    runner_state = RunnerState(
        env_state=env_state, key=keys, opt_state=opt_state, params=params
    )
    p_step = jax.pmap(train_step, axis_name="device", in_axes=(0, None), donate_argnums=0)
    for step in range(4):
        runner_state = p_step(runner_state, 0.1)
        if step == 1:
            keys = jax.vmap(lambda key: jax.random.split(key)[0])(runner_state.key)
            runner_state = runner_state._replace(key=keys)
    return params_of(runner_state), runner_state.key, runner_state.env_state


RESULT = main()
"""
)
# A state inside of what the map gives, with an axis of its own inside the device axis.
ANAKIN = """\
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

STEPS, UPDATE_BATCH = 3, 2


class LearnerState(NamedTuple):
    params: Any
    opt_states: Any
    key: jax.Array
    env_state: jax.Array


class ExperimentOutput(NamedTuple):
    learner_state: LearnerState
    episode_metrics: dict
    train_metrics: dict


def unreplicate_batch_dim(tree):
    return jax.tree_util.tree_map(lambda x: x[:, 0, ...], tree)


def unreplicate_n_dims(tree, depth=2):
    return jax.tree_util.tree_map(lambda x: x[(0,) * depth], tree)


def get_learner_fn(loss_fn, update_fn):
    def _update_step(learner_state, _):
        def _env_step(learner_state, _):
            params, opt_states, key, env_state = learner_state
            key, policy_key = jax.random.split(key)
            noise = jax.random.normal(policy_key, env_state.shape[:1])
            action = env_state @ params["w"] + 0.1 * noise
            env_state = 0.9 * env_state + action[:, None]
            reward = -jnp.sum(env_state**2)
            return LearnerState(params, opt_states, key, env_state), (env_state, reward)

        learner_state, (states, rewards) = jax.lax.scan(_env_step, learner_state, None, 4)
        params, opt_states, key, env_state = learner_state

        def _update_minibatch(train_state, batch):
            params, opt_states = train_state
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            grads, loss = jax.lax.pmean((grads, loss), axis_name="batch")
            grads, loss = jax.lax.pmean((grads, loss), axis_name="device")
            updates, opt_states = update_fn(grads, opt_states)
            params = jax.tree.map(lambda p, u: p + u, params, updates)
            return (params, opt_states), loss

        (params, opt_states), losses = jax.lax.scan(
            _update_minibatch, (params, opt_states), states
        )
        learner_state = learner_state._replace(params=params, opt_states=opt_states, key=key)
        return learner_state, (rewards, losses)

    def learner_fn(learner_state):
        # Updates the network.
        batched_update_step = jax.vmap(_update_step, in_axes=(0, None), axis_name="batch")

        learner_state, (episode_info, loss_info) = jax.lax.scan(
            batched_update_step, learner_state, None, STEPS
        )
        return ExperimentOutput(
            learner_state=learner_state,
            episode_metrics=episode_info,
            train_metrics=loss_info,
        )

    return learner_fn


def loss_fn(params, env_states):
    return jnp.mean((env_states @ params["w"] + params["b"]) ** 2)


def update_fn(grads, opt_states):
    opt_states = jax.tree.map(lambda m, g: 0.9 * m + g, opt_states, grads)
    return jax.tree.map(lambda m: -0.01 * m, opt_states), opt_states


def learner_setup(key):
    n_devices = len(jax.devices())
    learn = get_learner_fn(loss_fn, update_fn)
    learn = jax.pmap(learn, axis_name="device")

    params = {"w": jnp.ones(4), "b": jnp.zeros(())}
    opt_states = jax.tree.map(jnp.zeros_like, params)
    env_states = jax.random.normal(key, (n_devices * UPDATE_BATCH * 3, 4))
    reshape_states = lambda x: x.reshape((n_devices, UPDATE_BATCH, 3) + x.shape[1:])
    env_states = jax.tree_util.tree_map(reshape_states, env_states)

    step_keys = jax.random.split(key, n_devices * UPDATE_BATCH)
    step_keys = step_keys.reshape((n_devices, UPDATE_BATCH) + step_keys.shape[1:])
    replicate_learner = (params, opt_states)
    broadcast = lambda x: jnp.broadcast_to(x, (UPDATE_BATCH,) + x.shape)
    replicate_learner = jax.tree_util.tree_map(broadcast, replicate_learner)

    # Duplicate learner across devices.
    replicate_learner = jax.device_put_replicated(replicate_learner, jax.devices())

    # Initialise learner state.
    params, opt_states = replicate_learner
    init_learner_state = LearnerState(
        params=params, opt_states=opt_states, key=step_keys, env_state=env_states
    )
    return learn, init_learner_state


def evaluate(params, key):
    return jax.random.normal(key) + params["w"].sum()


def run_experiment():
    n_devices = len(jax.devices())
    key, key_e = jax.random.split(jax.random.PRNGKey(0))
    learn, learner_state = learner_setup(key)
    evaluator = jax.pmap(evaluate, axis_name="device")

    returns, saved = [], []
    for _ in range(2):
        learner_output = learn(learner_state)
        jax.block_until_ready(learner_output)
        returns.append(learner_output.episode_metrics.mean())
        returns.append(learner_output.train_metrics.mean())

        trained_params = unreplicate_batch_dim(learner_output.learner_state.params)
        eval_keys = jax.random.split(key_e, n_devices)
        returns.append(evaluator(trained_params, eval_keys).mean())

        saved.append(unreplicate_n_dims(learner_output.learner_state))
        learner_state = learner_output.learner_state
    return returns, saved


RESULT = run_experiment()
"""
# What is not followed takes a stacked copy of the replicated fields.
HANDED_OVER = UNPACKED.replace(
    "    params = jax.tree.map(lambda x: x[0], runner_state.params)",
    "    params = jax.vmap(lambda state: state.params)(runner_state)",
)
# What the map gives is the state itself.
RETURNED = UNPACKED.replace(', {"size": jnp.abs(env_state).sum()}', "").replace(
    'runner_state, metrics = p_step(runner_state)\n        sizes.append(metrics["size"].mean())',
    "runner_state = p_step(runner_state)",
)
STEPS = {
    "unpacked": UNPACKED,
    "replaced": REPLACED,
    "handed_over": HANDED_OVER,
    "returned": RETURNED,
}
PROGRAMS = {**STEPS, "anakin": ANAKIN}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run each program before and after; their results and new texts by name."""
    folder = tmp_path_factory.mktemp("mixed_fields")
    before, after = folder / "before", folder / "after"
    before.mkdir()
    after.mkdir()
    texts = {}
    for name, text in PROGRAMS.items():
        (before / f"{name}.py").write_text(text)
        (file,) = migrate([str(before / f"{name}.py")]).files
        texts[name] = file.after.decode()
        (after / f"{name}.py").write_text(texts[name])
    return run_all(before, "before"), run_all(after, "after"), texts


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_state_of_mixed_fields_gives_the_same_to_the_bit(runs, name):
    before, after, _ = runs
    assert_same(before[name], after[name])


@pytest.mark.parametrize("name", STEPS)
def test_each_field_has_the_spec_of_what_it_holds(runs, name):
    parts = (
        "params=jax.P()",
        "opt_state=jax.P()",
        'key=jax.P("device")',
        'env_state=jax.P("device")',
    )
    specs = r"runner_state_specs = RunnerState\(\s+" + r",\s+".join(map(re.escape, parts))
    assert len(re.findall(specs, runs[2][name])) == 1
    assert runs[2][name].count("jnp.stack") == (name == "handed_over")


def test_the_body_takes_the_device_axis_off_the_fields_that_have_it(runs):
    taken = """\
    runner_state = runner_state._replace(
        key=jax.tree.map(lambda x: x[0], runner_state.key),
        env_state=jax.tree.map(lambda x: x[0], runner_state.env_state),
    )
"""
    assert taken in runs[2]["unpacked"]
    assert taken in runs[2]["replaced"]
    assert "            jax.tree.map(lambda x: x[None], key),\n" in runs[2]["unpacked"]


def test_the_first_shard_of_a_replicated_field_is_the_field(runs):
    assert "    params = runner_state.params\n" in runs[2]["unpacked"]
    # A step that donates its state must not take the memory of what was returned.
    assert "    return jax.tree.map(jax.numpy.copy, runner_state.params)\n" in runs[2]["replaced"]


def test_a_result_that_has_the_state_in_a_field_has_specs_in_specs(runs):
    assert """\
            in_specs=(learner_state_specs,),
            out_specs=ExperimentOutput(
                learner_state=learner_state_specs,
                episode_metrics=jax.P("device"),
                train_metrics=jax.P("device"),
            ),
""" in runs[2]["anakin"]
    assert """\
            learner_state=learner_state._replace(
                key=jax.tree.map(lambda x: x[None], learner_state.key),
                env_state=jax.tree.map(lambda x: x[None], learner_state.env_state),
            ),
            episode_metrics=jax.tree.map(lambda x: x[None], episode_info),
""" in runs[2]["anakin"]


STAYS = {
    "gradients that are not reduced": (
        'jax.lax.pmean(jax.grad(loss_fn)(params, env_state), axis_name="device")',
        "jax.grad(loss_fn)(params, env_state)",
    ),
    "parameters that are moved by the key": (
        "    return RunnerState(params,",
        "    params = {**params, 'b': params['b'] + key.sum()}\n    return RunnerState(params,",
    ),
    "parameters that are made per device": (
        "    runner_state = RunnerState(params,",
        "    params['b'] = jnp.arange(8.0)\n    runner_state = RunnerState(params,",
    ),
    "a mapped function that gives another class": (
        "    return RunnerState(params, opt_state, key, env_state)",
        "    return (params, opt_state, key, env_state)",
    ),
}


@pytest.mark.parametrize("why", STAYS)
def test_a_state_of_mixed_fields_stays_stacked_with(tmp_path, why):
    before, new = STAYS[why]
    assert before in UNPACKED
    after = rewritten(tmp_path, UNPACKED.replace(before, new), style="global")[0]
    assert "params=jax.P()" not in after.decode()
