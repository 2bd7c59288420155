"""Where a stacked value may go: every way to a use counts, and what is not followed stays."""

import pytest

pytest.importorskip("click", reason="needs pmapx[tools]")

from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.migration import migrate

HEAD = """
import jax, jax.numpy as jnp, numpy as np
def train(state, batch):
    return state + jax.lax.pmean(batch, "i")
step = jax.pmap(train, axis_name="i")
def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())
"""

FOLLOWED = {
    "a map that is None until it is made": """
class Trainer:
    def __init__(self):
        self.p_step = None
        self.state = None
    def start(self):
        self.p_step = step
        self.state = replicate(1.0)
    def run(self, batch):
        if self.p_step is None:
            self.start()
        self.state = self.p_step(self.state, batch)
        print(float(self.state[0]))
def main(batch):
    Trainer().run(batch)
""",
    "copies of an array that is made first": """
def everywhere(x):
    count = jax.local_device_count()
    x = jnp.asarray(x)
    return jnp.stack([x] * count)
def main(batch):
    state = jax.tree.map(everywhere, 1.0)
    state = step(state, batch)
    print(float(state[0]))
""",
    "a frozen dictionary of Flax": """
from flax.core import FrozenDict
def main(batch):
    held = FrozenDict(state=replicate(1.0))
    state = step(held["state"], batch)
    print(float(state[0]))
""",
    "an attribute of a class beside another of the same interface": """
class Worker:
    def run(self):
        self.update()
    def update(self):
        raise NotImplementedError
class Other(Worker):
    def __init__(self, state):
        self.state = state
    def update(self):
        print(len(self.state))
class Trainer(Worker):
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
        print(float(self.state[0]))
Trainer().run()
""",
    "a function inside that is made after the last assignment of a variable": """
def main(batches, model):
    state = model.init()
    state = replicate(state)
    def check(batch):
        print(float(step(state, batch)[0]))
    for batch in batches:
        check(batch)
""",
    "a variable that is assigned again after a function inside is made": """
def main(batches, model):
    state = model.init()
    state = replicate(state)
    check = lambda: print(float(state[0]))
    for batch in batches:
        state = step(state, batch)
        check()
""",
    "copies in a list, one for each that is written out": """
def main(batch):
    state, other = [replicate(each) for each in (1.0, 2.0)]
    state, other = step(state, batch), step(other, batch)
    print(float(state[0]), float(other[0]))
""",
    "a lambda that replicates": """
def main(batch):
    put = lambda tree: jax.device_put_replicated(tree, jax.local_devices())
    state = put(1.0)
    state = step(state, batch)
    print(float(state[0]))
""",
    "a loop over the layers of a list": """
def layers():
    return [np.float32(size) for size in range(3)]
def main(batches):
    state = replicate(layers())
    for batch in batches:
        state = step(state, batch)
    for layer in state:
        print(float(layer[0]))
""",
    "a map in a dictionary that a function returns": """
def steps():
    return {"train": step}
def main(batch):
    chosen = steps()
    state = replicate(1.0)
    state = chosen["train"](state, batch)
    print(float(state[0]))
""",
    "a map in a dictionary": """
def main(batch):
    steps = {"train": step}
    state = replicate(1.0)
    state = steps["train"](state, batch)
    print(float(state[0]))
""",
    "a map in a dictionary, by a key in a variable": """
STEPS = {"train": step}
def main(batch, mode):
    state = replicate(1.0)
    state = STEPS[mode](state, batch)
    print(float(state[0]))
""",
    "an attribute that is read by its name": """
class Trainer:
    def __init__(self):
        self.p_step = step
    def run(self, state, batch):
        return getattr(self, "p_step")(state, batch)
def main(batch):
    state = replicate(1.0)
    state = Trainer().run(state, batch)
    print(float(state[0]))
""",
    "a field with the name of an array's method, and of a field of what a step takes": """
class Agent:
    def __init__(self):
        self.mean = replicate(1.0)
    def update(self, batch):
        self.mean = step(self.mean, batch)
def normalized(stats, batch):
    return batch.mean(0) - stats.mean
other = jax.pmap(lambda stats, batch: normalized(stats, batch).sum(axis=-1), axis_name="i")
def main(batch, stats):
    agent = Agent()
    agent.update(batch)
    print(other(stats, batch).mean(), float(agent.mean[0]))
""",
    "arguments that are unpacked": """
def main(batch):
    given = (replicate(1.0), batch)
    state, *_ = step(*given), 1
    print(float(state[0]))
""",
    "a map that is compiled ahead of time": """
def main(batch):
    state = replicate(1.0)
    compiled = step.lower(state, batch).compile()
    state = compiled(state, batch)
    print(float(state[0]))
""",
    "Orbax's conversion of copies into one global array": """
import orbax.checkpoint as ocp
def main(batch):
    state = replicate(1.0)
    state = step(state, batch)
    save(jax.tree.map(ocp.utils.fully_replicated_host_local_array_to_global_array, state))
""",
    "a function from a table that another function gives by its key": """
def run(batch):
    state = replicate(1.0)
    state = step(state, batch)
    print(float(state[0]))
    return state
TRAINERS = {"plain": run}
def trainer(name):
    if name not in TRAINERS.keys():
        raise ValueError(name)
    return TRAINERS[name]
def main(name, batch):
    state = run(batch)
    state = trainer(name)(batch)
    print(float(state[0]))
""",
    "a function that is chosen by a condition, beside a library's name": """
import tensorflow as tf
def short(state, batch):
    print(tf.io.short)
    return step(state, batch)
def long(state, batch):
    return step(step(state, batch), batch)
def main(is_long, batch):
    state = replicate(1.0)
    update = long if is_long else short
    state = update(state, batch)
    print(float(state[0]))
""",
    "donated arguments by keyword": """
donating = jax.pmap(train, axis_name="i", donate_argnums=(0, 1))
def main(batches):
    state = replicate(1.0)
    for _ in range(3):
        batch = next(batches)
        state = donating(state=state, batch=batch)
    print(float(state[0]))
""",
    "a loop that goes on early": """
def main(batches):
    state = replicate(1.0)
    for batch in batches:
        if batch is None:
            state = replicate(2.0)
            continue
        print(float(state[0]))
        state = step(state, batch)
""",
    "an exception between two bindings": """
def main(batch):
    state = replicate(1.0)
    try:
        state = step(state, batch)
        state = replicate(2.0)
    except ValueError:
        print(float(state[0]))
    finally:
        print(float(state[0]))
    return float(state[0])
""",
    "a function that rebinds a name of its module": """
state = replicate(1.0)
def update(batch):
    global state
    state = step(state, batch)
update(1.0)
print(float(state[0]))
""",
    "a function that rebinds a name of the function around": """
def main(batches):
    state = replicate(1.0)
    def update(batch):
        nonlocal state
        state = step(state, batch)
    for batch in batches:
        update(batch)
    print(float(state[0]))
""",
    "another attribute is read by a name that is written out": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
        self.name = "run"
    def update(self):
        self.state = step(self.state, 1.0)
        return float(self.state[0])
def show(something):
    return getattr(something, "name", None)
trainer = Trainer()
trainer.update()
print(show(trainer))
""",
    "another attribute is read by a name that is computed": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
        return float(self.state[0])
def shown(something, names):
    return [getattr(something, name) for name in names]
trainer = Trainer()
trainer.update()
print(shown(np.ones(2), ["shape", "dtype"]))
""",
    "something of a module is chosen by its name": """
class Trainer:
    def __init__(self, activation):
        self.state = replicate(1.0)
        self.activation = getattr(jax.nn, activation)
    def update(self):
        self.state = step(self.state, 1.0)
        return float(self.state[0])
Trainer("state" and "relu").update()
""",
    "an object that hands on names reads others": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
        return float(self.state[0])
class Watched:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
Watched(Trainer()).update()
""",
    "an attribute that other methods set": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self, batch):
        self.state = step(self.state, batch)
    def reset(self):
        self.state = replicate(2.0)
    def run(self, batches):
        self.state = replicate(3.0)
        for batch in batches:
            self.update(batch)
        return float(self.state[0])
""",
}

STAYS = {
    "a function that reads it before and after it is replicated": """
def main(batch):
    state = jnp.ones((8, 2))
    def show():
        print(state.shape, jax.tree.leaves(state)[0].sum())
    show()
    state = replicate(state)
    for _ in range(2):
        state = step(state, batch)
    show()
""",
    "a function that reads it and is passed on before it is replicated": """
def main(batch, hooks):
    state = jnp.ones((8, 2))
    def show():
        print(state.shape, jax.tree.leaves(state)[0].sum())
    hooks.append(show)
    state = replicate(state)
    for _ in range(2):
        state = step(state, batch)
    show()
""",
    "a generator that reads it when it is next asked": """
def main(batch):
    state = replicate(jnp.ones((8, 2)))
    def shown():
        while True:
            yield state.shape, jax.tree.leaves(state)[0].sum()
    values = shown()
    for _ in range(2):
        state = step(state, batch)
    state = np.asarray(state).mean(0)
    print(next(values))
""",
    "a number of what may be an array or a tuple": """
import typing
class State(typing.NamedTuple):
    held: jax.Array
def update(state, batch):
    return State(state.held + jax.lax.pmean(batch, "i"))
def main(batch):
    p_update = jax.pmap(update, axis_name="i", devices=jax.local_devices())
    state = replicate(State(np.ones((2, 2))))
    for _ in range(2):
        state = p_update(state, batch)
    print(state.held[0][1].sum())
""",
    "a method that its map may not have replaced yet": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def start(self):
        self.update = jax.pmap(self.update, axis_name="i")
    def update(self, state, batch):
        return step(state, batch) if batch.ndim > 1 else state + jax.lax.pmean(batch, "i")
    def run(self, batch):
        self.state = self.update(self.state, batch)
        print(float(self.state[0]))
def main(batch):
    Trainer().run(batch)
""",
    "a table with a map that is not known": """
def main(batch, mode, more):
    steps = {"train": step, **more}
    state = replicate(1.0)
    state = steps[mode](state, batch)
    print(float(state[0]))
""",
    "a function from a table that is passed on": """
def run(batch):
    state = step(step(replicate(1.0), batch), batch)
    return state
TRAINERS = {"plain": run}
def main(batch):
    submit(TRAINERS["plain"], batch)
    print(run(batch)[0])
""",
    "a donated argument by keyword that is kept, and by position": """
donating = jax.pmap(train, axis_name="i", donate_argnums=0)
def main(batches):
    state = replicate(1.0)
    for batch in batches:
        best = state
        state = donating(state=state, batch=batch)
    print(float(donating(state, batch)[0]), float(best[0]))
""",
    "a dictionary of maps that a function returns, and that is passed on": """
def steps():
    return {"train": step}
def main(batches, run):
    chosen = steps()
    run(chosen)
    state = replicate(1.0)
    for batch in batches:
        state = chosen["train"](state, batch)
""",
    "a function inside whose variable a loop binds again": """
def main(batches, model):
    checks = []
    for batch in batches:
        state = model.init()
        if checks:
            checks[0](batch)
        state = replicate(state)
        def check(batch):
            print(float(step(state, batch)[0]))
        checks.append(check)
""",
    "a function inside whose variable another one binds": """
def main(batches):
    state = replicate(1.0)
    def reset():
        nonlocal state
        state = 1.0
    def check(batch):
        print(float(step(state, batch)[0]))
    for batch in batches:
        check(batch)
        reset()
""",
    "copies of something that is computed first": """
def main(batches, params):
    def everywhere(x):
        x = x * 2
        return jnp.stack([x] * jax.local_device_count())
    state = jax.tree.map(everywhere, params)
    for batch in batches:
        state = step(state, batch)
""",
    "keywords that are unpacked into a call": """
def main(batches, model):
    state = replicate(1.0)
    for batch in batches:
        state = jax.pmap(model.apply, axis_name="i")(state, **batch)
        state = step(state, 1.0)
""",
    "early in a loop, something else": """
def main(batches):
    state = replicate(1.0)
    for batch in batches:
        if batch is None:
            state = np.ones(8)
            continue
        state = step(state, batch)
""",
    "a dictionary of maps that is passed on": """
def main(batch, run):
    steps = {"train": step}
    state = steps["train"](replicate(1.0), batch)
    run(steps)
""",
    "arguments that are unpacked from two tuples": """
def main(before, after):
    state = replicate(1.0)
    state = step(*before, *after)
    state = step(state, 1.0)
""",
    "something else that a map is compiled for": """
def main(load, batch):
    compiled = step.lower(load(), batch).compile()
    state = compiled(replicate(1.0), batch)
""",
    "something else before an exception": """
def main(batch, load):
    state = replicate(1.0)
    try:
        state = load()
        state = replicate(2.0)
    except ValueError:
        state = step(state, batch)
""",
    "something else by global": """
state = replicate(1.0)
def update(load):
    global state
    state = load()
update(np.load)
state = step(state, 1.0)
""",
    "something else by nonlocal": """
def main(load):
    state = replicate(1.0)
    def restore():
        nonlocal state
        state = load()
    restore()
    state = step(state, 1.0)
""",
    "something else in an attribute, by another method": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def restore(self, load):
        self.state = load()
    def run(self, load):
        self.state = replicate(3.0)
        self.restore(load)
        self.state = step(self.state, 1.0)
""",
    "a name that is read before and after it is bound anew": """
state = replicate(1.0)
def show():
    print(state.sharding)
show()
state = step(state, 1.0)
show()
""",
    "a method that may change it": """
state = replicate({"a": 1.0})
for _ in range(2):
    state = step(state, 1.0)
state.update({"b": 2.0})
""",
    "a part of it that is changed in place": """
state = replicate(1.0)
for _ in range(2):
    state = step(state, 1.0)
rows = np.array(state)
rows.T[0] = 5.0
""",
    "a text that it is part of": """
state = replicate(1.0)
for _ in range(2):
    state = step(state, 1.0)
print(f"{state + 1}")
""",
    "an attribute that a table names for a library": """
from library import Base
class Trainer(Base):
    SAVED = {"state": "params"}
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
Trainer().update()
""",
    "an attribute that a base class of a module sets by its name": """
import types
class Base:
    def load(self, saved):
        for name in ("state",):
            setattr(self, name, replicate(saved[name]))
module = types.SimpleNamespace(Base=Base)
class Trainer(module.Base):
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
trainer = Trainer()
trainer.update()
trainer.load({"state": 1.0})
""",
    "an attribute that a second base class reads by its name": """
class Logged:
    pass
class Base:
    def saved(self):
        return {name: getattr(self, name)[0] for name in ("state",)}
class Trainer(Logged, Base):
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
trainer = Trainer()
trainer.update()
print(trainer.saved())
""",
    "an attribute that attrgetter reads": """
import operator
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
trainer = Trainer()
trainer.update()
print(operator.attrgetter("state")(trainer)[0])
""",
    "an attribute that is read by its name in quotes": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
def shown(something, name=None):
    return [getattr(something, name) for name in ("state",)]
trainer = Trainer()
trainer.update()
print(shown(trainer))
""",
    "an attribute that is read by its name put together": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
def shown(something, name=None):
    return getattr(something, f"st{name}")
trainer = Trainer()
trainer.update()
print(shown(trainer))
""",
    "an attribute that is read by its name added up": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
def shown(something, name=None):
    return getattr(something, name + "te")
trainer = Trainer()
trainer.update()
print(shown(trainer))
""",
    "an attribute that is read by the names that its object lists": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
def shown(something, name=None):
    return [getattr(something, name) for name in dir(something)]
trainer = Trainer()
trainer.update()
print(shown(trainer))
""",
    "an attribute that is read through an object that hands on names": """
class Trainer:
    def __init__(self):
        self.state = replicate(1.0)
    def update(self):
        self.state = step(self.state, 1.0)
class Watched:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
watched = Watched(Trainer())
watched.update()
print(watched.state.sharding)
""",
}


def _migrated(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    done = migrate([str(path)], style="replicated", named=["train:state"])
    return done, done.files[0].after.decode()


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_value_is_followed_on_every_way(tmp_path, case):
    done, after = _migrated(tmp_path, FOLLOWED[case])
    assert [gain.what for gain in done.gains] == ["train: state, return"], done.stays
    assert "state[0]" not in after
    assert "device_put_replicated" not in after.replace(HEAD, "")


@pytest.mark.parametrize("case", STAYS)
def test_what_may_be_something_else_stays_stacked(tmp_path, case):
    done, _ = _migrated(tmp_path, STAYS[case])
    assert not done.gains


def test_a_loop_over_what_may_be_shards_gets_them_stacked_again(tmp_path):
    text = """
def main(batches, params):
    state = replicate(params)
    for batch in batches:
        state = step(state, batch)
    for shard in state:
        print(shard.mean())
"""
    done, after = _migrated(tmp_path, text)
    assert done.gains
    assert "jnp.stack([x] * jax.local_device_count()), state" in after


def test_a_lambda_that_is_also_passed_on_stays_as_it_is(tmp_path):
    text = """
def main(batch, apply):
    put = lambda tree: jax.device_put_replicated(tree, jax.local_devices())
    apply(put)
    state = step(put(1.0), batch)
    print(float(state[0]))
"""
    done, after = _migrated(tmp_path, text)
    assert done.gains
    made = next(line for line in after.partition("    put = ")[2].split("apply(put)"))
    assert "stack([x] * " in made
    assert "put(1.0)" not in after.replace("device_put(1.0", "")


@pytest.mark.parametrize("donated", ["0", "(0)", "(0,)"])
def test_what_calls_give_by_keyword_and_keep_is_not_donated_by_position(tmp_path, donated):
    text = f"""
donating = jax.pmap(
    train,
    axis_name="i",
    # The buffer of the state.
    donate_argnums={donated},
)
def main(batches):
    state = replicate(1.0)
    for batch in batches:
        best = state
        state = donating(state=state, batch=batch)
    print(float(state[0]), float(best[0]))
"""
    done, after = _migrated(tmp_path, text)
    assert [gain.what for gain in done.gains] == ["train: state, return"], done.stays
    assert "donating(state, batch)" in after
    assert "donate" not in after.replace("donating", "")
    assert "The buffer of" not in after


def test_a_value_is_followed_through_however_many_calls(tmp_path):
    depth = 200
    calls = "".join(f"def f{i}(x):\n    return f{i + 1}(x)\n" for i in range(depth))
    text = f"{calls}def f{depth}(x):\n    return x\nstate = step(f0(replicate(1.0)), 1.0)\n"
    done, after = _migrated(tmp_path, text)
    assert done.gains
    assert "in_specs=(jax.P()," in after


PAIR = """
import jax, jax.numpy as jnp, numpy as np
from flax import jax_utils
def train(state, batch):
    params, count = state
    params = jax.tree.map(lambda p: p - jax.lax.pmean(batch.mean(), "i"), params)
    return {result}, params["w"].sum()
def initial():
    return {{"w": np.ones(3, np.float32)}}, np.int32(0)
def main(batches):
    step = jax.pmap(train, axis_name="i")
    state = jax_utils.replicate({state})
    for batch in batches:
        state, total = step(state, batch)
    print(jax_utils.unreplicate(state[0]), state[0]["w"].shape, int(state[1][0]))
"""


@pytest.mark.parametrize(
    ("state", "result"),
    [("(initial()[0], 0)", "(params, count + 1)"), ("initial()", "jax.tree.map(abs, state)")],
    ids=["written as a tuple", "unpacked by the mapped function"],
)
def test_an_index_of_a_replicated_tuple_takes_an_item_and_stays(tmp_path, state, result):
    (tmp_path / "train.py").write_text(PAIR.format(state=state, result=result))
    done = migrate([str(tmp_path)])
    after = done.files[0].after.decode()
    assert [gain.what for gain in done.gains] == ["train: state, return[0], return[1]"], done.stays
    assert "print(state[0], " in after
    assert "unreplicate" not in after
    # An item of a dictionary whose shape is read is stacked again; the counter is a number.
    assert 'state[0]["w"]' in after
    assert "int(state[1])" in after


@pytest.mark.parametrize(
    ("given", "written"), [("state", "jax.device_get(state)"), ("state, as_numpy=False", "state")]
)
def test_what_is_brought_to_the_host_still_is(tmp_path, given, written):
    text = f"""
from acme.jax import utils
def main(batch):
    state = replicate(1.0)
    state = step(state, batch)
    save(utils.get_from_first_device({given}))
"""
    done, after = _migrated(tmp_path, text)
    assert done.gains
    assert f"save({written})" in after


PADDED = """
from flax.jax_utils import pad_shard_unpad
def evaluate(state, batch):
    return batch * state
def main(batch, test):
    p_evaluate = jax.pmap(evaluate, axis_name="i")
    state = replicate(1.0)
    state = step(state, batch)
    {padded}
"""


@pytest.mark.parametrize(
    ("padded", "is_followed"),
    [
        ("return pad_shard_unpad(p_evaluate)(state, test, min_device_batch=2)", True),
        ("padded = pad_shard_unpad(p_evaluate)\n    return padded(state, test)", True),
        ("return pad_shard_unpad(p_evaluate, static_argnums=(1,))(state, test)", False),
        ("return pad_shard_unpad(p_evaluate, static_argnames=('b',))(state, b=test)", False),
        ("padded = pad_shard_unpad(p_evaluate)\n    return padded(state, test), padded", False),
    ],
    ids=["at once", "by a name", "other positions", "names", "passed on"],
)
def test_what_is_not_padded_is_followed_into_the_map(tmp_path, padded, is_followed):
    done, _ = _migrated(tmp_path, PADDED.format(padded=padded))
    assert ("evaluate: state" in [gain.what for gain in done.gains]) == is_followed


def test_a_field_that_was_donated_is_still_one_of_the_same_state(tmp_path):
    text = """
def evaluate(params, batch):
    return jax.lax.psum((params * batch).sum(), "i")
p_evaluate = jax.pmap(evaluate, axis_name="i", donate_argnums=(0,))
state = {"w": np.ones(3)}
state = replicate(make_state(state))
state = step(state, 1.0)
print(float(p_evaluate(state.params, np.ones((8, 3)))[0]))
print(jax.tree.map(lambda x: x[0], state.params))
"""
    done, after = _migrated(tmp_path, text)
    assert [gain.what for gain in done.gains] == [
        "train: state, return", "evaluate: params, return",
    ], done.stays  # fmt: skip
    assert "print(state.params)" in after


def test_what_is_saved_has_the_axis_that_it_had(tmp_path):
    text = """
import pickle
def main(batch, file):
    state = replicate(1.0)
    state = step(state, batch)
    pickle.dump(state, file)
    state = step(state, batch)
    print(float(state[0]))
"""
    done, after = _migrated(tmp_path, text)
    assert done.gains
    assert "    # Saved with the leading device axis, as before.\n    pickle.dump(" in after


def test_a_function_inside_of_another_is_no_attribute_of_a_module(tmp_path):
    (tmp_path / "train.py").write_text(f"""{HEAD}
def main(batches):
    def evaluate(state):
        print(float(state[0]))
    state = replicate(1.0)
    for batch in batches:
        state = step(state, batch)
        evaluate(state)
""")
    (tmp_path / "scores.py").write_text("def evaluate(path):\n    return path\n")
    (tmp_path / "run.py").write_text("""
import scores, train
def chosen(is_evaluated):
    if is_evaluated:
        function = scores.evaluate
    else:
        function = train.main
    return function, {}
function, options = chosen(True)
function([1.0], **options)
""")
    done = migrate([str(tmp_path)])
    assert [gain.what for gain in done.gains] == ["train: state, return"], done.stays


def test_a_function_inside_of_another_that_is_passed_on_stays_stacked(tmp_path):
    (tmp_path / "train.py").write_text(f"""{HEAD}
def main(batches, runner):
    def evaluate(state):
        print(state.sharding)
    state = replicate(1.0)
    for batch in batches:
        state = step(state, batch)
        evaluate(state)
    runner.evaluate = evaluate
""")
    assert not migrate([str(tmp_path)]).gains


def test_the_first_of_each_value_in_a_tuple_needs_no_stacked_copy(tmp_path):
    program = """
def main(batch):
    state, other = jax.tree.map(lambda x: jnp.stack([x] * jax.local_device_count()), (1.0, 2.0))
    state, other = step(state, batch), step(other, batch)
    return jax.tree.map(lambda x: np.array(x[0]), (state, other))
"""
    _, after = _migrated(tmp_path, program)
    assert after.endswith("    return jax.tree.map(lambda x: np.array(x), (state, other))\n")


def test_a_return_outside_of_functions_is_survived(tmp_path):
    (tmp_path / "train.py").write_text("import jax\nreturn jax.pmap(f)(x)\n")
    assert migrate([str(tmp_path)]).failure is None


def test_a_keyword_only_argument_is_said_to_have_no_position(tmp_path):
    (tmp_path / "train.py").write_text("""
import jax
def train(state, *, lr):
    return jax.lax.pmean(state * lr, "i")
step = jax.pmap(train, axis_name="i")
def main(lr):
    state = jax.device_put_replicated(1.0, jax.local_devices())
    print(float(step(state, lr=lr)[0]))
""")
    result = migrate([str(tmp_path / "train.py")])
    assert "keyword arguments that have no known position" in str(result)


def test_without_a_run_no_reason_mentions_one():
    assert Evidence().not_reached == ""
    assert Evidence(has_run=True).not_reached == ": the run did not reach this line"


VIEWS = {
    "a row": "row = state[1]\n    row += 1",
    "rows of a loop": "for row in state:\n        row[:] = 2",
    "an output": "np.add(state, 1, out=state)",
    "a copy": "np.copyto(state, 3)",
}


@pytest.mark.parametrize("case", VIEWS)
def test_an_array_of_numpy_that_a_view_changes_stays_stacked(tmp_path, case):
    program = f"""
def main(batch):
    state = np.stack([np.zeros(2)] * jax.local_device_count())
    {VIEWS[case]}
    state = step(state, batch)
    print(state[0])
"""
    done, _ = _migrated(tmp_path, program)
    assert not done.gains
