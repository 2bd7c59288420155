"""Programs in the manner of real trainers. Each sets RESULT, equal before and after, and STATE."""

HEAD = """
import dataclasses, functools
from typing import Any, NamedTuple
import jax, jax.numpy as jnp, numpy as np
from jax import lax
N = jax.local_device_count()
ROWS = (np.arange(64) % 5 - 2).astype(np.float32).reshape(2, 8, 4)
INIT = {"w": np.array([-1, 0.5, 0, 0.25], np.float32), "n": np.int32(0)}
def train_step(state, batch, rate=0.25):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"])
    grads = lax.pmean(grads, axis_name="batch")
    return {"w": state["w"] - rate * grads, "n": state["n"] + 1}, lax.pmean(loss, "batch")
def first(tree):
    return jax.tree.map(lambda x: x[0], tree)
def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
"""

# Each with the names that stand for a run.
TRAINERS = {
    "a_wrapper_that_hands_its_options_on": (
        """
def my_pmap(f, **kw):
    return jax.pmap(f, axis_name="batch", **kw)
step = my_pmap(train_step, donate_argnums=(0,))
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        ["train_step:state"],
    ),
    "a_wrapper_with_two_users": (
        """
def my_pmap(f, **kw):
    return jax.pmap(f, axis_name="batch", **kw)
step = my_pmap(train_step, donate_argnums=(0,))
score = my_pmap(lambda w, x: lax.psum((w * x).sum(), "batch"))
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0]), score(state["w"], ROWS[0])[0]
STATE = state
""",
        ["train_step:state"],
    ),
    "a_partial_of_pmap": (
        """
pmap = functools.partial(jax.pmap, axis_name="batch")
step = pmap(train_step, donate_argnums=(0,))
score = pmap(lambda w, x: lax.psum((w * x).sum(), "batch"))
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0]), score(state["w"], ROWS[0])[0]
STATE = state
""",
        ["train_step:state"],
    ),
    "a_partial_of_the_step": (
        """
step = jax.pmap(functools.partial(train_step, rate=0.5), axis_name="batch")
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        ["train_step:state"],
    ),
    "a_keyword_that_pmap_does_not_donate": (
        """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
state = replicate(INIT)
for batch in ROWS:
    new, loss = step(state=state, batch=batch)
RESULT = first(state), first(new)
STATE = state
""",
        ["train_step:state"],
    ),
    "passed_by_keyword": (
        """
step = jax.pmap(train_step, axis_name="batch")
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state=state, batch=batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        ["train_step:state"],
    ),
    "a_class_that_initializes_later": (
        """
class Trainer:
    def __init__(self, rate):
        self.rate = rate
        self.state = None
        self.update = jax.pmap(self._update, axis_name="batch", donate_argnums=(0,))
        self.evaluate = jax.pmap(self._evaluate, axis_name="batch")
    def _update(self, state, batch):
        return train_step(state, batch, self.rate)
    def _evaluate(self, params, batch):
        return lax.pmean((params * batch).mean(), "batch")
    def initialize(self):
        self.state = replicate(INIT)
    def train(self, batches):
        if self.state is None:
            self.initialize()
        for batch in batches:
            self.state, metrics = self.update(self.state, batch)
        return float(metrics[0])
    def test(self, batch):
        return float(self.evaluate(self.state["w"], batch)[0])
    def checkpoint(self):
        return jax.device_get(jax.tree.map(lambda x: x[0], self.state))
trainer = Trainer(0.5)
loss = trainer.train(ROWS)
RESULT = loss, trainer.test(ROWS[0]), trainer.checkpoint()
STATE = trainer.state
""",
        ["_update:state", "_evaluate:params"],
    ),
    "a_method_replaced_by_its_map": (
        """
class Experiment:
    def __init__(self):
        self._params = None
        self._count = None
        self._update_func = jax.pmap(self._update_func, axis_name="batch", donate_argnums=(0, 1))
    def step(self, batch):
        if self._params is None:
            self._initialize()
        self._params, self._count, scalars = self._update_func(self._params, self._count, batch)
        scalars = jax.tree.map(lambda x: x[0], scalars)
        return scalars
    def _initialize(self):
        self._params = jax.device_put_replicated(INIT["w"], jax.local_devices())
        self._count = jax.device_put_replicated(INIT["n"], jax.local_devices())
    def _update_func(self, params, count, batch):
        new, loss = train_step({"w": params, "n": count}, batch)
        return new["w"], new["n"], {"loss": loss}
experiment = Experiment()
scalars = [experiment.step(batch) for batch in ROWS]
RESULT = scalars, first(experiment._params)
STATE = experiment._params
""",
        ["_update_func:params", "_update_func:count"],
    ),
    "a_factory_of_steps": (
        """
def make_update_fn(*, rate):
    def update_fn(params, opt_state, batch, rng):
        _, new_rng = jax.random.split(rng)
        new, loss = train_step({"w": params, "n": opt_state}, batch, rate)
        return new["w"], new["n"], loss, new_rng
    return jax.pmap(update_fn, axis_name="batch", donate_argnums=(0,))
def apply(variables, x, train):
    return variables["params"] * x
def train():
    params_repl = replicate(INIT["w"])
    opt_repl = replicate(INIT["n"])
    update_rng_repl = replicate(jax.random.PRNGKey(0))
    infer_fn_repl = jax.pmap(functools.partial(apply, train=False))
    update_fn_repl = make_update_fn(rate=0.5)
    for step, batch in zip(range(1, 3), ROWS):
        params_repl, opt_repl, loss_repl, update_rng_repl = update_fn_repl(
            params_repl, opt_repl, batch, update_rng_repl)
        if step == 2:
            logits = infer_fn_repl(dict(params=params_repl), batch)
    return params_repl, (first(params_repl), float(loss_repl[0]), np.asarray(logits))
STATE, RESULT = train()
""",
        ["update_fn:params", "update_fn:opt_state", "update_fn:rng", "apply:variables"],
    ),
    "evaluation_in_a_function": (
        """
def eval_step(params, batch, config):
    return lax.psum({"loss": (params * batch).sum(), "n": jnp.float32(batch.size)}, "batch")
def evaluate(*, p_eval_step, params, eval_ds, num=-1):
    eval_metrics = []
    for batch in eval_ds:
        metrics = p_eval_step(params, batch)
        eval_metrics.append(metrics)
    fetched = [jax.device_get(first(m)) for m in eval_metrics]
    stacked = jax.tree.map(lambda *args: np.stack(args), *fetched)
    return jax.tree.map(np.sum, stacked)
def train_and_evaluate(config):
    state = INIT
    state = replicate(state)
    p_train_step = jax.pmap(functools.partial(train_step, rate=config["rate"]),
                            axis_name="batch", donate_argnums=(0,))
    p_eval_step = jax.pmap(functools.partial(eval_step, config=config), axis_name="batch")
    train_metrics = []
    for step in range(2):
        batch = ROWS[step]
        state, metrics = p_train_step(state, batch)
        train_metrics.append(metrics)
        if step == 1:
            results = evaluate(p_eval_step=p_eval_step, params=state["w"], eval_ds=ROWS)
    losses = [float(m[0]) for m in train_metrics]
    return state, (results, losses, first(state))
STATE, RESULT = train_and_evaluate({"rate": 0.5})
""",
        ["train_step:state", "eval_step:params"],
    ),
    "a_timed_epoch": (
        """
class TrainingState(NamedTuple):
    params: Any
    steps: Any
def _unpmap(v):
    return jax.tree_util.tree_map(lambda x: x[0], v)
def train(num):
    devices = jax.local_devices()[:8]
    def training_epoch(training_state, env_state, key):
        new, loss = train_step({"w": training_state.params, "n": training_state.steps}, env_state)
        env_state = env_state + jax.random.uniform(key)
        return TrainingState(new["w"], new["n"]), env_state, {"loss": loss}
    training_epoch = jax.pmap(training_epoch, axis_name="batch")
    def training_epoch_with_timing(training_state, env_state, key):
        result = training_epoch(training_state, env_state, key)
        training_state, env_state, metrics = result
        metrics = jax.tree_util.tree_map(jnp.mean, metrics)
        return training_state, env_state, metrics
    training_state = TrainingState(params=INIT["w"], steps=INIT["n"])
    training_state = jax.device_put_replicated(training_state, devices)
    env_state = ROWS[0]
    local_key = jax.random.PRNGKey(1)
    for it in range(num):
        key, local_key = jax.random.split(local_key)
        keys = jax.random.split(key, 8)
        (training_state, env_state, metrics) = training_epoch_with_timing(
            training_state, env_state, keys)
        current_step = int(_unpmap(training_state.steps))
        params = _unpmap((training_state.params, training_state.steps))
    return training_state, (current_step, params, metrics)
STATE, RESULT = train(2)
""",
        ["training_epoch:training_state"],
    ),
    "state_made_on_the_devices": (
        """
class TrainState(NamedTuple):
    params: Any
    count: Any
def _initial_state(rng, batch):
    w = jax.random.randint(rng, batch.shape, 0, 3).astype(jnp.float32) / 4
    return TrainState(w, jnp.int32(0))
def step_fn(train_state, batch):
    new, loss = train_step({"w": train_state.params, "n": train_state.count}, batch)
    return TrainState(new["w"], new["n"]), {"loss": loss}
def main():
    rng = jax.random.PRNGKey(42)
    rng = jnp.broadcast_to(rng, (N,) + rng.shape)
    train_state = jax.pmap(_initial_state)(rng, ROWS[0])
    p_step = jax.pmap(step_fn, axis_name="batch", donate_argnums=(0,))
    for batch in ROWS:
        train_state, train_scalars = p_step(train_state, batch)
    train_scalars = jax.device_get(jax.tree.map(lambda x: x[0], train_scalars))
    params = jax.tree.map(lambda x: x[0], train_state.params)
    return train_state, (train_scalars, params)
STATE, RESULT = main()
""",
        ["_initial_state:rng", "step_fn:train_state"],
    ),
    "metrics_are_fetched": (
        """
@dataclasses.dataclass
class Config:
    rate: float
def unreplicate_and_get(x):
    return jax.device_get(first(x))
def step(train_state, batch, *, rate):
    return train_step(train_state, batch, rate)
def train(config):
    train_state = replicate(INIT)
    train_step_pmapped = jax.pmap(functools.partial(step, rate=config.rate),
                                  axis_name="batch", donate_argnums=(0, 1))
    train_metrics = []
    for i in range(1, 3):
        train_batch = jnp.asarray(ROWS[i - 1])
        train_state, t_metrics = train_step_pmapped(train_state, train_batch)
        train_metrics.append(unreplicate_and_get(t_metrics))
        if i == 1:
            saved = unreplicate_and_get(train_state)
    return train_state, (train_metrics, saved, unreplicate_and_get(train_state))
STATE, RESULT = train(Config(0.5))
""",
        ["step:train_state"],
    ),
    "a_decorated_method": (
        """
class Model:
    rate = 0.5
    @functools.partial(jax.pmap, axis_name="batch", static_broadcasted_argnums=(0,))
    def update(self, state, batch):
        return train_step(state, batch, self.rate)
model = Model()
state = replicate(INIT)
for batch in ROWS:
    state, loss = model.update(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        ["update:state"],
    ),
    "the_loop_is_elsewhere": (
        """
def fit(p_step, state, batches):
    for step in range(len(batches)):
        state, m = p_step(state, batches[step])
    return state, m
def save(state, where):
    where["saved"] = jax.device_get(first(state))
def run():
    where = {}
    step = jax.pmap(train_step, axis_name="batch")
    state = replicate(INIT)
    state, loss = fit(step, state, ROWS)
    save(state, where)
    return state, (where, loss[0])
STATE, RESULT = run()
""",
        ["train_step:state"],
    ),
    "a_learner_that_saves_and_restores": (
        """
class Learner:
    def __init__(self, state, iterator):
        def sgd_step(state, batch):
            return train_step(state, batch)
        self._sgd_step = jax.pmap(sgd_step, axis_name="batch")
        self._state = replicate(state)
        self._iterator = iterator
    def step(self):
        batch = next(self._iterator)
        self._state, metrics = self._sgd_step(self._state, batch)
        return first(metrics)
    def get_variables(self):
        return [first(self._state["w"])]
    def save(self):
        return first(self._state)
    def restore(self, state):
        self._state = replicate(state)
learner = Learner(INIT, iter(ROWS))
a = learner.step()
learner.restore(learner.save())
b = learner.step()
RESULT = a, b, learner.get_variables(), learner.save()
STATE = learner._state
""",
        ["sgd_step:state"],
    ),
    "keywords_in_another_order": (
        """
step = jax.pmap(train_step, axis_name="batch")
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(batch=batch, state=state)
RESULT = first(state), float(loss[0])
STATE = state
""",
        ["train_step:state"],
    ),
    "a_wrapper_without_options": (
        """
def over_devices(function, name="batch"):
    return jax.pmap(function, axis_name=name)
step = over_devices(train_step)
score = over_devices(lambda w, x: lax.pmean((w * x).sum(), "batch"))
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0]), float(score(state["w"], ROWS[0])[0])
STATE = state
""",
        ["train_step:state"],
    ),
    "a_wrapper_used_for_what_stays": (
        """
def my_pmap(f, **kw):
    return jax.pmap(f, axis_name="batch", **kw)
step = my_pmap(train_step, donate_argnums=(0,))
walk = my_pmap(lambda position, x: position + x)
state = replicate(INIT)
position = replicate(INIT["w"])
for batch in ROWS:
    state, loss = step(state, batch)
    position = walk(position, batch)
RESULT = first(state), float(loss[0]), np.asarray(position)
STATE = state
""",
        ["train_step:state"],
    ),
    "a_package": (
        {
            "parallel.py": """
import jax
def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
def unreplicate(tree):
    return jax.tree.map(lambda x: x[0], tree)
def pmap(function, **options):
    return jax.pmap(function, axis_name="batch", **options)
""",
            "steps.py": HEAD,
            "loops.py": """
import parallel
def run(p_step, state, batches):
    history = []
    for step in range(len(batches)):
        state, loss = p_step(state, batches[step])
        history.append(float(parallel.unreplicate(loss)))
    return state, history
""",
            "main.py": """
import loops
import parallel
import steps
from parallel import pmap, unreplicate
def main():
    p_step = pmap(steps.train_step, donate_argnums=(0,))
    state, history = loops.run(p_step, parallel.replicate(steps.INIT), steps.ROWS)
    return state, (history, unreplicate(state))
STATE, RESULT = main()
""",
        },
        ["train_step:state"],
    ),
    "a_loop_in_a_file_without_pmap": (
        {
            "steps.py": HEAD
            + """
def make_step(rate):
    def step(state, batch):
        return train_step(state, rate * batch)
    return jax.pmap(step, axis_name="batch")
""",
            "main.py": """
import jax, jax.numpy as jnp
import steps
n = jax.local_device_count()
state = jax.tree.map(lambda x: jnp.stack([x] * n), steps.INIT)
p_step = steps.make_step(2.0)
losses = []
for batch in steps.ROWS:
    state, loss = p_step(state, batch)
    losses.append(float(loss[0]))
STATE, RESULT = state, (losses, jax.tree.map(lambda x: x[0], state))
""",
        },
        ["step:state"],
    ),
}

# Each with a part of the reason.
STAYS = {
    "a_wrapper_that_gives_axes": (
        """
def my_pmap(f):
    return jax.pmap(f, axis_name="batch", in_axes=(0, 0))
step = my_pmap(train_step)
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        "a wrapper that sets in_axes itself",
    ),
    "a_wrapper_that_looks_at_its_options": (
        """
def my_pmap(f, **kw):
    kw.setdefault("axis_name", "batch")
    return jax.pmap(f, **kw)
step = my_pmap(train_step)
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        "does not forward its options unchanged",
    ),
    "a_keyword_that_would_be_donated": (
        """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
state = replicate(INIT)
for batch in ROWS:
    new, loss = step(state=state, batch=batch)
RESULT = first(state), first(new), first(step(new, batch)[0])
STATE = state
""",
        "it is passed by keyword",
    ),
    "set_from_outside": (
        """
class Trainer:
    def __init__(self):
        self.state = None
        self.step = jax.pmap(train_step, axis_name="batch")
    def update(self, batch):
        self.state, loss = self.step(self.state, batch)
        return float(loss[0])
trainer = Trainer()
trainer.state = {name: np.stack([x] * 8) for name, x in INIT.items()}
losses = [trainer.update(batch) for batch in ROWS]
RESULT = losses, np.asarray(trainer.state["w"])
STATE = trainer.state
""",
        "not created by replicate",
    ),
    "mapped_only_sometimes": (
        """
class Trainer:
    def __init__(self, is_parallel):
        if is_parallel:
            self.update = jax.pmap(self.update, axis_name="batch")
    def update(self, state, batch):
        return train_step(state, batch)
trainer = Trainer(True)
state = replicate(INIT)
for batch in ROWS:
    state, loss = trainer.update(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        "update is used in a way that cannot be followed",
    ),
    "a_step_chosen_by_another_name": (
        """
def make(kind):
    return jax.pmap(train_step, axis_name="batch") if kind == "pmap" else jax.jit(train_step)
step = make("pmap")
state = replicate(INIT)
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = first(state), float(loss[0])
STATE = state
""",
        "train_step is used in a way that cannot be followed",
    ),
}
