"""Programs with state on all devices. Each sets RESULT, equal before and after, and STATE."""

HEAD = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax import lax
N = jax.local_device_count()
# Numbers with few bits: sums are exact, in whatever order a compiler adds.
ROWS = (np.arange(64) % 5 - 2).astype(np.float32).reshape(2, 8, 4)
INIT = {"w": np.array([-1, 0.5, 0, 0.25], np.float32), "n": np.int32(0)}
def train_step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"])
    grads = lax.pmean(grads, axis_name="batch")
    return {"w": state["w"] - 0.25 * grads, "n": state["n"] + 1}, lax.pmean(loss, "batch")
def first(tree):
    return jax.tree.map(lambda x: x[0], tree)
"""

RATE = """
def halves(w, batch, rate):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(w), "batch")
    # A rate with a dtype makes what it is multiplied by float32, and a number does not.
    return (w - rate * grads).astype(jnp.float16), rate * w
step = jax.pmap(halves, "batch")
def main(rate):
    w = jnp.stack([jnp.asarray(INIT["w"], jnp.float16)] * N)
    for batch in ROWS:
        w, scaled = step(w, batch.astype(np.float16), RATE_OF_EACH_DEVICE)
    return w, scaled
STATE, scaled = main(0.25)
RESULT = first(STATE), scaled[0]
"""
RATES = {
    f"a_rate_{name}": RATE.replace("RATE_OF_EACH_DEVICE", text)
    for name, text in {
        "that_fills_an_array": "jnp.full((N,), rate)",
        "that_fills_an_array_of_numpy": "np.full(N, rate)",
        "that_fills_an_array_of_a_dtype": "jnp.full((N,), rate, dtype=jnp.float32)",
        "that_is_broadcast": "jnp.broadcast_to(rate, (N,))",
        "in_a_list": "jnp.array([rate] * N)",
        "in_a_list_of_numpy": "np.stack([rate] * N)",
    }.items()
}

REPLICATED = {
    "a_loop": """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
def main():
    state = jax.device_put_replicated(INIT, jax.local_devices())
    losses = []
    for batch in ROWS:
        state, loss = step(state, batch)
        losses.append(float(loss[0]))
    return state, (losses, jax.tree.map(lambda x: x[0], state))
STATE, RESULT = main()
""",
    "train_and_evaluate_share_state": """
@functools.partial(jax.pmap, axis_name="batch")
def train(state, batch):
    return train_step(state, batch)
def evaluate(params, batch):
    return lax.psum((params * batch).sum(), "batch"), params * batch
p_evaluate = jax.pmap(evaluate, axis_name="batch")
def fit(state):
    for batch in ROWS:
        state, loss = train(state, batch)
    return state, loss
state, loss = fit(jax.device_put_replicated(INIT, jax.devices()))
total, own = p_evaluate(state["w"], ROWS[0])
RESULT = float(loss[0]), float(total[0]), own, first(state)
STATE = state
""",
    "a_field_that_is_static": """
import dataclasses
@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["rate"])
@dataclasses.dataclass(frozen=True)
class State:
    w: jax.Array
    rate: float = 0.5
def train(state, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state.w), "batch")
    return State(state.w - state.rate * grads, state.rate)
step = jax.pmap(train, axis_name="batch")
state = jax.device_put_replicated(State(INIT["w"]), jax.local_devices())
for batch in ROWS:
    state = step(state, batch)
RESULT = str([state.rate]).count("0.5"), first(state.w)
STATE = state
""",
    "a_function_that_is_called_once_the_state_is_replicated": """
step = jax.pmap(train_step, axis_name="batch")
score = jax.pmap(lambda w, x: lax.psum((w * x).sum(), "batch"), axis_name="batch")
def main():
    state = {**INIT}
    def evaluate(batch):
        return float(score(state["w"], batch)[0])
    state = jax.device_put_replicated(state, jax.local_devices())
    scores = []
    for batch in ROWS:
        state, loss = step(state, batch)
        scores.append(evaluate(batch))
    return state, (scores, first(state))
STATE, RESULT = main()
""",
    "a_branch_that_ends_the_program": """
import sys
step = jax.pmap(train_step, axis_name="batch")
def restore(state):
    return {**state, "n": state["n"] + 1}
def main(is_evaluated):
    state = INIT
    if is_evaluated:
        state = jax.device_put_replicated(state, jax.local_devices())
        print(step(state, ROWS[0])[1][0])
        sys.exit(0)
    state = restore(state)
    state = jax.device_put_replicated(state, jax.local_devices())
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, (float(loss[0]), first(state))
STATE, RESULT = main(False)
""",
    "an_item_of_a_tuple_in_a_tuple": """
import typing
class Hyper(typing.NamedTuple):
    held: dict
class State(typing.NamedTuple):
    w: jax.Array
    opt: tuple
def train(state, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state.w), "batch")
    return State(state.w - state.opt[0][1].held["rate"] * grads, state.opt)
step = jax.pmap(train, axis_name="batch", devices=jax.local_devices())
init = State(INIT["w"], ((np.float32(0), Hyper({"rate": np.float32(0.25)})),))
state = jax.device_put_replicated(init, jax.local_devices())
for batch in ROWS:
    state = step(state, batch)
RESULT = state.opt[0][1].held["rate"][-1].item(), first(state.w)
STATE = state
""",
    "momentum_like_the_parameters": """
def train(params, momentum, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w["w"] - 1) ** 2))(params), "batch")
    momentum = jax.tree.map(lambda m, g: 0.5 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.25 * m, params, momentum), momentum
step = jax.pmap(train, axis_name="batch", donate_argnums=(0, 1))
params = jax.device_put_replicated({"w": INIT["w"]}, jax.local_devices())
momentum = jax.tree.map(jnp.zeros_like, params)
for batch in ROWS:
    params, momentum = step(params, momentum, batch)
RESULT = first(params), first(momentum)
STATE = params, momentum
""",
    "copies_stacked_by_hand": """
state = jax.tree.map(lambda x: jnp.stack([x] * N), INIT)
step = jax.pmap(train_step, "batch", in_axes=(0, 0))
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "layers_lists_and_tables": """
def train(layers, batch):
    def mean(layers):
        return jnp.mean(sum(batch * w + b for w, b in layers))
    grads = lax.pmean(jax.grad(mean)(layers), "batch")
    return jax.tree.map(lambda x, g: x - 0.25 * g, layers, grads)
def made():
    return {"train": jax.pmap(train, axis_name="batch"), "sum": jax.pmap(
        lambda x, y, batch: (x + lax.psum(batch.sum(), "batch"), y + 1), axis_name="batch")}
def main():
    put = lambda tree: jax.device_put_replicated(tree, jax.local_devices())
    steps = made()
    layers = put([(np.float32(size), np.float32(0.5)) for size in range(2)])
    total, count = [put(each) for each in (np.float32(0), np.int32(0))]
    for batch in ROWS:
        layers = steps["train"](layers, batch)
        total, count = steps["sum"](total, count, batch)
    numbers = []
    for w, b in layers:
        numbers.append((float(w[0]), float(b[0])))
    return (layers, total, count), (numbers, float(total[0]), int(count[0]))
STATE, RESULT = main()
""",
    "a_class": """
class Trainer:
    def __init__(self):
        self._step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
        self.state = jax.device_put_replicated(INIT, jax.local_devices())
    def update(self, batch):
        self.state, loss = self._step(self.state, batch)
        return loss[0]
    def weights(self):
        return jax.device_get(first(self.state))
trainer = Trainer()
losses = [trainer.update(batch) for batch in ROWS]
RESULT = losses, trainer.weights()
STATE = trainer.state
""",
    "a_method_that_its_map_replaces_at_the_first_step": """
class Trainer:
    def __init__(self):
        self.state = None
    def start(self):
        self.state = jax.device_put_replicated(INIT, jax.local_devices())
        self.update = jax.pmap(self.update, axis_name="batch", donate_argnums=0)
    def update(self, state, batch):
        new, loss = train_step(state, batch)
        loss = lax.pmean(loss, "batch")
        return new, loss
    def step(self, batch):
        if self.state is None:
            self.start()
        self.state, loss = self.update(self.state, batch)
        return loss[0]
trainer = Trainer()
losses = [trainer.step(batch) for batch in ROWS]
RESULT = losses, jax.device_get(first(trainer.state))
STATE = trainer.state
""",
    "kept_after_a_donation": """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
state = jax.device_put_replicated(INIT, jax.local_devices())
state, _ = step(state, ROWS[0])
halfway = jax.tree.map(lambda x: x[0], state)
count = state["n"][0]
state, _ = step(state, ROWS[1])
RESULT = halfway, count, first(state)
STATE = state
""",
    "nothing_but_state": """
p_decay = jax.pmap(lambda s: jax.tree.map(lambda x: x * 2, s))
step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
    state = p_decay(state)
RESULT = first(state), loss[0]
STATE = state
""",
    "through_a_wrapper_and_by_keyword": """
def my_pmap(f, **kw):
    return jax.pmap(f, axis_name="batch", **kw)
class Trainer:
    def __init__(self):
        self.state = None
        self.update = my_pmap(self._update)
        self.score = my_pmap(lambda w, x: lax.pmean((w * x).sum(), "batch"))
    def _update(self, state, batch):
        return train_step(state, batch)
    def train(self, batches):
        if self.state is None:
            self.state = jax.device_put_replicated(INIT, jax.local_devices())
        for batch in batches:
            self.state, loss = self.update(state=self.state, batch=batch)
        return float(loss[0]), float(self.score(self.state["w"], batch)[0])
trainer = Trainer()
RESULT = trainer.train(ROWS), first(trainer.state)
STATE = trainer.state
""",
    "saved_and_restored": """
def save(state):
    if jax.device_count() > 0:
        state = jax.device_get(first(state))
        return state
def restore(saved):
    return jax.device_put_replicated(saved, jax.local_devices())
step = jax.pmap(train_step, axis_name="batch")
state, _ = step(restore(INIT), ROWS[0])
state, _ = step(restore(save(state)), ROWS[1])
RESULT = save(state)
STATE = state
""",
}

# Each with a part of the reason.
REPLICATED |= {
    "a_step_that_the_run_does_not_reach": """
step = jax.pmap(train_step, axis_name="batch")
finetune = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
    if N > 100:
        state, loss = finetune(state, batch)
RESULT = float(loss[0]), first(jax.device_get(state))
STATE = state
""",
    "copies_repeated": """
state = jax.tree.map(lambda x: jnp.repeat(jnp.expand_dims(x, 0), N, axis=0), INIT)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "copies_put_on_their_devices": """
def copied(leaf):
    if isinstance(leaf, np.ndarray):
        return jnp.stack([leaf] * len(jax.local_devices()))
    return jnp.repeat(leaf[None], jax.local_device_count(), axis=0)
state = jax.tree.map(copied, INIT)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "copies_for_devices_of_a_name": """
def main(count):
    devices = jax.local_devices()[:count]
    def copied(leaf):
        return jnp.stack([leaf] * len(devices))
    return jax.tree.map(copied, INIT)
state = main(N)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    **RATES,
    "numbers_in_an_object_of_copies": """
import typing
class Scaled(typing.NamedTuple):
    w: jax.Array
    rate: float
def scaled(state, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state.w), "batch")
    w = (state.w - state.rate * grads).astype(jnp.float16)
    return Scaled(w, state.rate), state.rate * grads
step = jax.pmap(scaled, "batch", donate_argnums=(0,))
def main():
    w = jnp.asarray(INIT["w"], jnp.float16)
    state = Scaled(w, 0.25)
    state = jax.tree.map(lambda v: np.stack([v] * N), state)
    for batch in ROWS:
        state, result = step(state, batch.astype(np.float16))
    return state, result, w
STATE, result, kept = main()
RESULT = first(STATE), result[0], kept
""",
    "numbers_in_a_tree_of_copies": """
def scaled(state, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"]), "batch")
    w = (state["w"] - state["rate"] * grads).astype(jnp.float16)
    return {"w": w, "rate": state["rate"]}, state["rate"] * w
step = jax.pmap(scaled, "batch")
def main():
    state = {"w": jnp.asarray(INIT["w"], jnp.float16), "rate": 0.25}
    state = jax.tree.map(lambda v: jnp.array([v] * N), state)
    for batch in ROWS:
        state, result = step(state, batch.astype(np.float16))
    return state, result
STATE, result = main()
RESULT = first(STATE), result[0]
""",
    "copies_of_arrays_for_all_devices_by_default": """
def everywhere(tree, devices=None):
    devices = devices or jax.local_devices()
    return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree)
state = everywhere(INIT)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "copies_broadcast": """
state = jax.tree.map(lambda x: np.broadcast_to(x, (N,) + x.shape), INIT)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "copies_tiled": """
state = jax.tree.map(lambda x: np.tile(x[None], (N,) + (1,) * x.ndim), INIT)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "a_function_that_takes_state_and_others": """
def wait(tree):
    jax.tree.map(lambda x: x.dtype, tree)
    return None
step = jax.pmap(train_step, "batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
    wait((state, loss))
    wait((INIT, None))
    wait((None, None))
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "fields_replaced_by_a_function": """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    n: object
    def __getitem__(self, name):
        return getattr(self, name)
def train(state, batch):
    new, loss = train_step(state, batch)
    return State(**new), loss
step = jax.pmap(train, "batch")
state = jax.device_put_replicated(State(**INIT), jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
state = dataclasses.replace(state, n=jax.device_put_replicated(np.int32(7), jax.local_devices()))
state = dataclasses.replace(
    state, **{"w": jax.device_put_replicated(INIT["w"], jax.local_devices())})
state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
    "leaves_moved_to_other_dicts_with_their_axis_and_without": """
def sorted_in(state, is_left):
    left, right = {}, {}
    for key, part in state.items():
        if is_left[key]:
            left[key] = part
        else:
            right[key] = part
    return {"left": left, "right": right}
def together(halves):
    new = dict(halves["left"])
    new.update(halves["right"])
    return new
def step(halves, batch):
    state, loss = train_step({**halves["left"], **halves["right"]}, batch)
    return {"left": {"n": state["n"]}, "right": {"w": state["w"]}}, loss
p_step = jax.pmap(step, "batch")
is_left = {"w": False, "n": True}
print(together(sorted_in(INIT, is_left)))
state = jax.device_put_replicated(INIT, jax.local_devices())
state = sorted_in(state, is_left)
for batch in ROWS:
    state, loss = p_step(state, batch)
    state = sorted_in(together(state), is_left)
RESULT = jax.device_get(first(together(state))), together(first(state)), loss[0]
STATE = state
""",
}

# A number in a tree of copies has a dtype, and a weak type where it is put on the devices itself.
NUMBERS = """
def scaled(state, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"]), "batch")
    w = (state["w"] - state["rate"] * grads).astype(jnp.float16)
    return {"w": w, "rate": state["rate"]}, state["rate"] * grads
step = jax.pmap(scaled, "batch")
W = jnp.asarray(INIT["w"], jnp.float16)
MADE
for batch in ROWS:
    state, result = step(state, batch.astype(np.float16))
RESULT = first(state), result[0]
STATE = state
"""
INITIAL = """
def initial(w, rate=0.25):
    return {"w": w, "rate": rate}
"""
REPLICATED |= {
    f"numbers_in_a_tree_{name}": NUMBERS.replace("MADE", text)
    for name, text in {
        "that_a_function_copies": """
def stacked(tree):
    return jax.tree.map(lambda x: np.stack([x] * N), tree)
state = stacked(dict(w=W, rate=0.25))
""",
        "that_a_function_makes": f"""{INITIAL}
state = jax.tree.map(lambda x: np.array([x] * N), initial(W))
""",
        "that_is_repeated": f"""{INITIAL}
def stacked(x):
    return np.repeat(np.expand_dims(x, 0), N, axis=0)
state = jax.tree.map(stacked, initial(W))
""",
    }.items()
}
SEVERAL_FILES = {
    "numbers_in_a_tree_that_another_file_copies": {
        "main.py": HEAD
        + NUMBERS.replace(
            "MADE",
            """
from copying import stacked
given = {"w": W, "rate": 0.25}
state = stacked(given)
""",
        ),
        "copying.py": """
import jax, numpy as np
def stacked(tree):
    return jax.tree.map(lambda x: np.stack([x] * jax.local_device_count()), tree)
""",
    },
}

# Maps over fewer shards than there are devices, in programs that ask how many these are.
FEWER = """
step = jax.pmap(train_step, axis_name="batch")
def stacked(tree, n):
    return jax.tree.map(lambda x: jnp.stack([x] * n), tree)
def train(state, n):
    for batch in ROWS:
        state, loss = step(state, batch.reshape(n, -1, 4))
    return state, loss
MADE
RESULT = first(STATE), float(loss[0])
"""
FEWER_SHARDS = {
    f"fewer_shards_than_devices_by_{name}": FEWER.replace("MADE", text)
    for name, text in {
        "a_name_for_some_of_them": """
devices = jax.devices()
devices = devices[:4]
STATE, loss = train(jax.device_put_replicated(INIT, devices), len(devices))
""",
        "a_list_of_some_of_them": """
devices = [device for device in jax.devices() if device.id < 4]
STATE, loss = train(jax.device_put_replicated(INIT, devices), len(devices))
""",
        "a_function_that_may_give_all": """
def chosen(few=True):
    return jax.devices()[:4] if few else jax.devices()
devices = chosen()
STATE, loss = train(jax.device_put_replicated(INIT, devices), len(devices))
""",
        "the_smaller_of_two_numbers": """
n = min(4, jax.local_device_count())
STATE, loss = train(stacked(INIT, n), n)
""",
        "a_constant": """
COUNT = 4
print(jax.device_count())
STATE, loss = train(stacked(INIT, COUNT), COUNT)
""",
        "a_number_that_is_counted_down": """
def divisor(size):
    n = jax.local_device_count()
    while size % n or n > 5:
        n -= 1
    return n
n = divisor(8)
STATE, loss = train(stacked(INIT, n), n)
""",
        "arguments_that_are_unpacked": """
def few(batches=1, n=jax.device_count()):
    return train(stacked(INIT, n), n)
given = {"n": 4}
STATE, loss = few(1, **given)
""",
        "half_of_them": """
n = jax.device_count() // 2
STATE, loss = train(stacked(INIT, n), n)
""",
        "a_loader": """
class Trainer:
    def __init__(self, n):
        self.n = min(n, jax.local_device_count())
        self.step = jax.pmap(train_step, axis_name="batch")
        self.total = jax.pmap(lambda w, b: lax.psum((b * w).sum(), "batch"), "batch")
        self.state = stacked(INIT, self.n)
    def batches(self):
        for batch in ROWS:
            yield batch.reshape(self.n, -1, 4)
    def run(self):
        for i, batch in enumerate(self.batches()):
            self.state, loss = self.step(self.state, batch)
        for batch in self.batches():
            total = self.total(self.state["w"], batch)
        return self.state, total + loss
STATE, loss = Trainer(4).run()
""",
    }.items()
}

# Options of pmap that are not written at its call.
OPTIONS = """
MADE
def main():
    state = jax.device_put_replicated(INIT, jax.local_devices())
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, loss
STATE, loss = main()
RESULT = first(STATE), float(loss[0])
"""
OPTIONS_ELSEWHERE = {
    "options_in_a_dict": OPTIONS.replace(
        "MADE",
        """
options = dict(axis_name="batch", donate_argnums=(0,))
step = jax.pmap(train_step, **options)
""",
    ),
}

# Copies that NumPy stacked can be written to, one by one, until a step takes them.
HOST_ARRAY = """
def average(w, batch):
    return lax.pmean(w, "batch") - lax.pmean(batch, "batch")
step = jax.pmap(average, axis_name="batch")
def bump(view):
    view += 1
def bump_row(w):
    row = w[1]
    row += 1
def made():
    return np.stack([INIT["w"]] * N)
class Holder:
    def __init__(self):
        self.w = np.stack([INIT["w"]] * N)
        self.row = self.w[2]
    def bump(self):
        self.row += 1
def main():
    CHANGE
    for batch in ROWS:
        w = step(w, batch)
    return w
STATE = main()
RESULT = np.asarray(STATE[0])
"""
HOST_ARRAYS = {
    f"an_array_of_numpy_changed_{name}": HOST_ARRAY.replace("CHANGE", text.replace("\n", "\n    "))
    for name, text in {
        "by_a_function_that_takes_a_view": "w = made()\nbump(w[1])",
        "by_a_function_that_takes_it": "w = np.stack([INIT['w']] * N)\nbump_row(w)",
        "where_another_function_made_it": "w = made()\nfor row in w:\n    row[:] = 2\n    break",
        "through_an_attribute": "holder = Holder()\nholder.bump()\nw = holder.w",
        "by_its_method": "w = made()\nw[1].fill(3)",
        "in_a_tree": "p = jax.tree.map(lambda x: np.stack([x] * N), INIT)\n"
        "row = p['w'][1]\nrow += 1\nw = p['w']",
        "in_a_list": "w = made()\nrows = [w[i] for i in range(N)]\nrows[1] += 5",
        "flat": "w = made()\nflat = w.ravel()\nflat[0] = 64",
    }.items()
}
# What stacks copies does not share memory with what it is given, and jax.device_put may.
ALIGNED = """
def aligned():
    raw = np.zeros(128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 16].view(np.float32)
"""
REPLICATED |= {
    "an_array_that_changes_after_copies_of_it": f"""{ALIGNED}
step = jax.pmap(lambda w, batch: w + lax.pmean(batch, "batch"), axis_name="batch")
def main():
    given = aligned()
    w = np.stack([given] * N)
    given += 7
    for batch in ROWS:
        w = step(w, batch)
    return w
STATE = main()
RESULT = np.asarray(STATE[0])
""",
    "an_array_that_changes_after_a_function_copies_it": f"""{ALIGNED}
def stacked(tree):
    return jax.tree.map(lambda x: jnp.stack([x] * N), tree)
step = jax.pmap(train_step, axis_name="batch")
def main():
    given = aligned()
    state = stacked({{"w": given, "n": np.int32(0)}})
    given += 7
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, loss
STATE, loss = main()
RESULT = first(STATE), float(loss[0])
""",
    "an_attribute_that_changes_after_copies_of_it": f"""{ALIGNED}
class Model:
    def __init__(self):
        self.w = aligned()
    def stacked(self):
        return jax.tree.map(lambda x: jnp.stack([x] * N), {{"w": self.w, "n": np.int32(0)}})
    def change(self):
        self.w[:] = 9
step = jax.pmap(train_step, axis_name="batch")
def main():
    model = Model()
    state = model.stacked()
    model.change()
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, loss
STATE, loss = main()
RESULT = first(STATE), float(loss[0])
""",
}

STACKED = {
    "a_branch_that_ends_no_program": (
        """
step = jax.pmap(train_step, axis_name="batch")
def leave(status):
    print(status)
def restore(state):
    return {**state, "n": state["n"] + 1}
def main(is_evaluated):
    state = INIT
    if is_evaluated:
        state = jax.device_put_replicated(state, jax.local_devices())
        leave(0)
    state = restore(state)
    if not is_evaluated:
        state = jax.device_put_replicated(state, jax.local_devices())
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, jax.device_get(state["w"])
STATE, RESULT = main(False)
""",
        "",
    ),
    "a_dict_of_state_and_of_what_is_computed_from_it": (
        """
p_step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = p_step(state, batch)
    state = dict(state, w=state["w"] * 0.5)
RESULT = jax.device_get(state), loss[0]
STATE = state
""",
        "what is passed here was not created by replicate",
    ),
    "statistics_of_each_device": (
        """
def step(state, batch):
    new, loss = train_step({"w": state["w"], "n": state["n"]}, batch)
    return {**new, "mean": 0.5 * state["mean"] + batch.mean()}, loss
p_step = jax.pmap(step, axis_name="batch")
state = jax.device_put_replicated({**INIT, "mean": np.float32(0)}, jax.local_devices())
for batch in ROWS:
    state, loss = p_step(state, batch)
RESULT = jax.device_get(state), loss[0]
STATE = state
""",
        "['mean'] differs as 'batch' does, made at statistics_of_each_device.py:18",
    ),
    "a_static_value_turns_the_mean_off": (
        """
def step(state, batch, is_synchronous):
    grads = (batch * state["w"]).mean(keepdims=True) * jnp.ones(4)
    if is_synchronous:
        grads = lax.pmean(grads, "batch")
    return {"w": state["w"] - grads, "n": state["n"] + 1}
p_step = jax.pmap(step, axis_name="batch", static_broadcasted_argnums=2)
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state = p_step(state, batch, True)
for batch in ROWS:
    state = p_step(state, batch, False)
RESULT = jax.device_get(state)
STATE = state
""",
        "['w'] differs as 'batch' does",
    ),
    "momentum_that_only_a_run_shows_to_be_equal_beside_parameters_that_stay": (
        """
def step(params, momentum, batch):
    grads = lax.pmean(jax.grad(lambda w: jnp.mean((batch * w - 1) ** 2))(params["w"]), "batch")
    momentum = {"w": 0.5 * momentum["w"] + grads}
    return {"w": params["w"] - 0.25 * momentum["w"]}, momentum
p_step = jax.pmap(step, axis_name="batch")
def main():
    params = jax.device_put_replicated({"w": INIT["w"]}, jax.local_devices())
    momentum = {name: np.zeros((8, 4), np.float32) for name in ["w"]}
    for batch in ROWS:
        params, momentum = p_step(params, momentum, batch)
    shards = params["w"].addressable_shards
    return (params, momentum), ([each.data for each in shards], jax.device_get(first(momentum)))
STATE, RESULT = main()
""",
        "params, which belongs to it, stays stacked",
    ),
    "a_primitive_that_jax_does_not_define": (
        """
from jax.extend.core import Primitive
from jax.interpreters import mlir
shifted = Primitive("shifted_by_device")
shifted.def_abstract_eval(lambda x: x)
mlir.register_lowering(
    shifted, mlir.lower_fun(lambda x: x + lax.axis_index("batch"), multiple_results=False)
)
def step(state, batch):
    new, loss = train_step(state, batch)
    return {**new, "n": shifted.bind(new["n"])}, loss
p_step = jax.pmap(step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = p_step(state, batch)
RESULT = jax.device_get(state), loss[0]
STATE = state
""",
        "['n'] differs since `shifted_by_device`",
    ),
    "partly_varying_and_never_fed_back": (
        """
def step(state, batch):
    new, loss = train_step(state, batch)
    return new, {"loss": loss, "own": batch.sum()}
p_step = jax.pmap(step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, metrics = p_step(state, batch)
RESULT = first(state), metrics["loss"][0], np.asarray(metrics["own"])
STATE = metrics
""",
        "",
    ),
    "a_key_for_each_device": (
        """
def step(state, key, batch):
    new, loss = train_step(state, batch + jax.random.uniform(key))
    return new, jax.random.split(key)[0]
p_step = jax.pmap(step, axis_name="batch")
keys = jax.random.split(jax.random.PRNGKey(0), N)
for batch in ROWS:
    keys = p_step({k: np.stack([v] * 8) for k, v in INIT.items()}, keys, batch)[1]
RESULT = STATE = keys
""",
        "not created by replicate",
    ),
    "its_devices_are_asked_for": (
        """
step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = [shard.data.sum() for shard in state["w"].addressable_shards]
STATE = state
""",
        "its addressable_shards is read (line 20)",
    ),
    "a_field_replaced_by_what_differs": (
        """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    n: object
    def __getitem__(self, name):
        return getattr(self, name)
def train(state, batch):
    new, loss = train_step(state, batch)
    return State(**new), loss
step = jax.pmap(train, "batch")
state = jax.device_put_replicated(State(**INIT), jax.local_devices())
for batch in ROWS:
    state = dataclasses.replace(state, **{"n": np.arange(N, dtype=np.int32)})
    state, loss = step(state, batch)
RESULT = jax.device_get(state), loss[0]
STATE = state
""",
        "it has a leading device axis on some paths to here, and not on others",
    ),
    "made_so_that_it_differs": (
        """
step = jax.pmap(train_step, axis_name="batch")
def main():
    state = {name: np.stack([x + i for i in range(8)]) for name, x in INIT.items()}
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, jax.device_get(state)
STATE, RESULT = main()
""",
        "what is passed here was not created by replicate",
    ),
    "tiled_otherwise": (
        """
state = jax.tree.map(lambda x: np.tile(x[None], (N,) + (2,) * x.ndim), {"w": INIT["w"][:2]})
state["n"] = np.zeros(N, np.int32)
step = jax.pmap(train_step, "batch")
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.device_get(first(state)), loss[0]
STATE = state
""",
        "it is modified in place",
    ),
    "differs_by_itself": (
        """
def step(state, batch):
    new, loss = train_step(state, batch)
    return {**new, "n": new["n"] + lax.axis_index("batch")}, loss
p_step = jax.pmap(step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = p_step(state, batch)
RESULT = jax.device_get(state)
STATE = state
""",
        "['n'] differs since `axis_index` at differs_by_itself.py:18",
    ),
    "never_reached": (
        """
def step(state, batch):
    new, loss = train_step(state, batch)
    return {**new, "n": new["n"] + lax.axis_index("batch")}, loss
p_step = jax.pmap(step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
if N > 100:
    state, loss = p_step(state, ROWS[0])
RESULT = jax.device_get(state)
STATE = state
""",
        "the command never called it",
    ),
}

# State that something takes in a way that cannot be followed, with a part of what is written there.
BOUNDARIES = {
    "a_callback_among_others": (
        """
step = jax.pmap(train_step, axis_name="batch")
seen = []
def log(number, state):
    seen.append(float(state["w"][0].sum()) + number)
def main(callbacks):
    state = jax.device_put_replicated(INIT, jax.local_devices())
    for number, batch in enumerate(ROWS):
        state, loss = step(state, batch)
        for callback in callbacks:
            callback(number, state)
    return state, loss
STATE, loss = main([log])
RESULT = float(loss[0]), seen, first(STATE)
""",
        "# With the leading device axis that log expects.",
    ),
    "indexed_by_device": (
        """
step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = [np.asarray(state["w"][i]) for i in range(N)]
STATE = state
""",
        "# With the leading device axis that the code here expects.",
    ),
    "is_compared_and_looped_over_below": (
        """
step = jax.pmap(train_step, axis_name="batch")
def main():
    state = jax.device_put_replicated(INIT, jax.local_devices())
    for batch in ROWS:
        state, loss = step(state, batch)
    rows = np.asarray(state["w"])
    assert (rows == rows[0]).all()
    return state, [row.sum() for row in rows]
STATE, RESULT = main()
""",
        "# With the leading device axis that the code below expects.\n"
        "    rows = np.asarray(jax.tree",
    ),
    "is_returned_to_code_that_is_not_seen": (
        """
step = jax.pmap(train_step, axis_name="batch")
def fit(rows):
    state = jax.device_put_replicated(INIT, jax.local_devices())
    for batch in rows:
        state, loss = step(state, batch)
    return {"state": state, "loss": float(loss[0])}
fitted = [fit].pop()(ROWS)
RESULT = fitted["loss"], jax.device_get(first(fitted["state"]))
STATE, _ = step(jax.device_put_replicated(INIT, jax.local_devices()), ROWS[0])
""",
        "# With the leading device axis that the caller of fit expects.",
    ),
    "goes_to_code_that_is_not_seen": (
        """
step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = np.add.reduce(state["w"])
STATE = state
""",
        "# With the leading device axis that np.add.reduce expects.",
    ),
    "goes_to_a_callback_among_others": (
        """
step = jax.pmap(train_step, axis_name="batch")
def fit(state, callbacks):
    for batch in ROWS:
        state, loss = step(state, batch)
        callbacks["watch"](0, {"state": state, "step": 1})
    return state
seen = []
def watch(step, values):
    seen.append(np.asarray(values["state"]["w"]))
callbacks = {f.__name__: f for f in (watch,)}
state = fit(jax.device_put_replicated(INIT, jax.local_devices()), callbacks)
RESULT = seen, jax.device_get(first(state))
STATE = state
""",
        'that callbacks["watch"] expects',
    ),
    "a_function_is_mapped_over_it": (
        """
def norm(x):
    return float(np.abs(np.asarray(x)).sum())
step = jax.pmap(train_step, axis_name="batch")
state = jax.device_put_replicated(INIT, jax.local_devices())
for batch in ROWS:
    state, loss = step(state, batch)
RESULT = jax.tree.map(norm, state), loss[0]
STATE = state
""",
        "lambda x: jnp.stack([x] * jax.local_device_count()), state",
    ),
}

# What only a run shows to be equal: its first shard is taken where it is made, with a comment.
RUN = {
    "made_by_a_comprehension": """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
def main():
    state = {name: np.stack([x] * 8) for name, x in INIT.items()}
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, (jax.device_get(first(state)), float(loss[0]))
STATE, RESULT = main()
""",
    "made_by_a_function_that_is_not_followed": """
def copied(leaf):
    devices = jax.local_devices()
    return jnp.stack([leaf] * len(devices))
step = jax.pmap(train_step, "batch")
def main():
    state = jax.tree.map(copied, INIT)
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, (jax.device_get(first(state)), float(loss[0]))
STATE, RESULT = main()
""",
    "made_in_a_way_that_is_not_followed_and_used_before": """
step = jax.pmap(train_step, axis_name="batch")
def main():
    state = {name: np.stack([x] * 8) for name, x in INIT.items()}
    shape = np.shape(state["w"])
    for batch in ROWS:
        state, loss = step(state, batch)
    return state, (shape, jax.device_get(first(state)))
STATE, RESULT = main()
""",
}

# Fields of a state that differ between devices; a text that only what stays stacked has.
BY_FIELD = {
    "statistics_that_differ": (
        """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    stats: dict
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
def train(state, batch):
    params, loss = train_step(state.params, batch)
    mean = 0.5 * state.stats["mean"] + 0.5 * batch.mean()
    new = state.replace(params=params, stats={"mean": mean})
    return new, loss
def evaluate(state, batch):
    return lax.psum(((batch - state.stats["mean"]) * state.params["w"]).sum(), "batch")
average = jax.pmap(lambda x: lax.pmean(x, "batch"), axis_name="batch")
def synced(state):
    return state.replace(stats=average(state.stats))
def main():
    state = State(INIT, {"mean": np.float32(0)})
    state = jax.device_put_replicated(state, jax.local_devices())
    step = jax.pmap(train, axis_name="batch", donate_argnums=0)
    p_evaluate = jax.pmap(evaluate, axis_name="batch")
    results = []
    for batch in ROWS:
        state, loss = step(state, batch)
        results.append((float(loss[0]), np.asarray(state.stats["mean"])))
    state = synced(state)
    results.append(float(p_evaluate(state, ROWS[0])[0]))
    return state, (results, first(state).params, first(state).stats)
STATE, RESULT = main()
""",
        "state.replace(stats=jax.tree.map(lambda x: x[0], state.stats))",
    ),
    "maps_that_do_not_see_the_state": (
        """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    stats: dict
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
def train(state, batch):
    params, loss = train_step(state.params, batch)
    mean = 0.5 * state.stats["mean"] + 0.5 * batch.mean()
    return state.replace(params=params, stats={"mean": mean}), loss
def evaluate(state, batch):
    return lax.psum(((batch - state.stats["mean"]) * state.params["w"]).sum(), "batch")
class Trainer:
    def __init__(self):
        self.step = jax.pmap(train, axis_name="batch")
        self.evaluate = jax.pmap(evaluate, axis_name="batch", donate_argnums=(1,))
    def run(self, state, batches):
        for batch in batches:
            state, loss = self.step(state, batch)
            print(float(loss[0]), float(self.evaluate(state=state, batch=batch)[0]), batch.sum())
        return state
def main():
    trainer = Trainer()
    state = State(INIT, {"mean": np.float32(0)})
    state = jax.device_put_replicated(state, jax.local_devices())
    def total(batch):
        p_evaluate = jax.pmap(evaluate, axis_name="batch")
        return float(p_evaluate(state, batch)[0])
    state = trainer.run(state, ROWS)
    return state, (total(ROWS[1]), first(state).params, first(state).stats)
STATE, RESULT = main()
""",
        'jax.tree.map(lambda _: jax.P(), state).replace(stats=jax.P("batch"))',
    ),
    "a_field_that_is_made_for_each_device": (
        """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    seeds: object
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
def train(state, batch):
    params, loss = train_step(state.params, batch)
    return state.replace(params=params, seeds=state.seeds * 3), loss
def for_devices(state):
    seeds = state.seeds + np.arange(N, dtype=np.int32)
    return jax.device_put_replicated(state, jax.local_devices()).replace(seeds=seeds)
def main():
    step = jax.pmap(train, axis_name="batch", donate_argnums=0)
    state = for_devices(State(INIT, np.int32(5)))
    for batch in ROWS:
        state, loss = step(state, batch)
        float(loss[0])
    return state, (jax.device_get(first(state.params)), np.asarray(state.seeds))
STATE, RESULT = main()
""",
        "jax.device_put(state, jax.NamedSharding(mesh, jax.P())).replace(seeds=seeds)",
    ),
    "an_object_of_another_class_for_one_of_two_maps": (
        """
import dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    stats: dict
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Halves:
    left: dict
    right: dict
    stats: dict
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
def halved(state):
    left, right = {}, {}
    for key, part in state.params.items():
        if key == "w":
            left[key] = part
        else:
            right[key] = part
    return Halves(left=left, right=right, stats=state.stats)
def together(halves):
    params = dict(halves.left)
    params.update(halves.right)
    return State(params=params, stats=halves.stats)
def train(halves, batch):
    params, loss = train_step({**halves.left, **halves.right}, batch)
    stats = {"mean": 0.5 * halves.stats["mean"] + 0.5 * batch.mean()}
    return halves.replace(left={"w": params["w"]}, right={"n": params["n"]}, stats=stats), loss
def evaluate(state, batch):
    return lax.psum(((batch - state.stats["mean"]) * state.params["w"]).sum(), "batch")
def main():
    state = State(INIT, {"mean": np.float32(0)})
    state = jax.device_put_replicated(state, jax.local_devices())
    state = halved(state)
    step = jax.pmap(train, axis_name="batch", donate_argnums=0)
    p_evaluate = jax.pmap(evaluate, axis_name="batch")
    results = []
    for batch in ROWS:
        state, loss = step(state, batch)
        results.append((float(loss[0]), np.asarray(state.stats["mean"])))
        whole = together(state)
        results.append(float(p_evaluate(whole, batch)[0]))
    kept = together(first(state))
    return state, (results, kept.params, kept.stats)
STATE, RESULT = main()
""",
        "lambda state, batch: jax.shard_map(\n            evaluate,",
    ),
    "a_named_tuple": (
        """
from typing import NamedTuple
class State(NamedTuple):
    params: dict
    noise: object
def train(state, batch):
    params, loss = train_step(state.params, batch)
    return State(params, state.noise + batch.sum()), loss
def saved(state):
    return repr(jax.tree.map(np.shape, state))
def main():
    state = State(INIT, np.float32(0))
    state = jax.device_put_replicated(state, jax.local_devices())
    step = jax.pmap(train, axis_name="batch")
    for batch in ROWS:
        state, loss = step(state, batch)
        float(loss[0])
    return state, (saved(state), state.noise)
STATE, RESULT = main()
""",
        "state._replace(noise=jax.tree.map(lambda x: x[0], state.noise))",
    ),
    "a_field_of_a_function_in_another_place": (
        """
import types, dataclasses
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: dict
    seen: object
    def replace(self, **changed):
        return dataclasses.replace(self, **changed)
def train(state, batch):
    params, loss = train_step(state.params, batch)
    return state.replace(params=params, seen=state.seen + lax.axis_index("batch")), loss
def main():
    state = State(INIT, np.int32(0))
    state = jax.device_put_replicated(state, jax.local_devices())
    step = jax.pmap(train, axis_name="batch")
    for batch in ROWS:
        state, loss = step(state, batch)
        float(loss[0])
    kept = jax.tree.map(lambda x: x, state)
    return state, (first(kept).params, kept.seen)
STATE, RESULT = main()
""",
        "",
    ),
}

STACKED |= {name: (text, "") for name, text in HOST_ARRAYS.items()}
