"""A state that is replicated but for some fields: what is written for these."""

import pytest
from migrated import rewritten

from pmapx._src.codemod.migration import migrate

PROGRAM = """\
import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: int
    params: dict
    stats: dict

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)


def train_step(state, batch):
    stats = {"mean": batch.mean()}
    grads = jax.lax.pmean(jax.grad(lambda p: jnp.mean(batch * p["w"]))(state.params), "batch")
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, grads)
    return state.replace(step=state.step + 1, params=params, stats=stats)


def main(batches):
    state = State(0, {"w": jnp.ones(3)}, {"mean": jnp.zeros(())})
    state = jax.device_put_replicated(state, jax.local_devices())
    p_step = jax.pmap(train_step, axis_name="batch")
    for batch in batches:
        state = p_step(state, batch)
    first = jax.tree.map(lambda x: x[0], state).params["w"]
    return first, jax.tree.map(lambda x: x[0], state).stats


if __name__ == "__main__":
    main([jnp.ones((jax.local_device_count(), 4, 3))] * 2)
"""


def test_the_fields_alone_get_their_axis_where_the_state_is_replaced(tmp_path):
    after = rewritten(tmp_path, PROGRAM, style="global")[0].decode()
    assert "    state = state.replace(stats=jax.tree.map(lambda x: x[0], state.stats))\n" in after
    assert "stats=jax.tree.map(lambda x: x[None], stats))\n" in after
    assert "lambda out:" not in after


def test_what_is_read_of_the_other_fields_needs_no_first_shard(tmp_path):
    after = rewritten(tmp_path, PROGRAM, style="global")[0].decode()
    assert '    first = state.params["w"]\n' in after
    assert "state.replace(stats=jax.tree.map(lambda x: x[0], state.stats)).stats" in after


ELSEWHERE = (
    PROGRAM.replace(
        "def main(",
        """def eval_step(state, batch):
    return jax.lax.pmean(batch.mean() * state.params["w"] + state.stats["mean"], "batch")


def evaluate(state, batch):
    p_eval = jax.pmap(eval_step, axis_name="batch")
    return p_eval(state, batch)[0]


class Evaluator:
    def __init__(self, function):
        self.function = jax.pmap(function, axis_name="batch")

    def first(self, state, batch):
        return self.function(state, batch)[0]

    def run(self, state, batches):
        return [self.first(state, batch) for batch in batches]


def main(""",
        1,
    )
    .replace(
        "    first =",
        "    print(evaluate(state, batch), evaluator.run(state, batches))\n    first =",
    )
    .replace("    p_step = ", "    evaluator = Evaluator(eval_step)\n    p_step = ")
)


def test_a_map_of_a_function_that_is_given_the_state_has_specs_above_it(tmp_path):
    after = rewritten(tmp_path, ELSEWHERE, style="global")[0].decode()
    specs = """def evaluate(state, batch):
    state_specs = jax.tree.map(lambda _: jax.P(), state).replace(stats=jax.P("batch"))
"""
    assert specs in after


def test_a_class_that_maps_any_function_before_it_has_the_state_is_given_it_stacked_once(tmp_path):
    after = rewritten(tmp_path, ELSEWHERE, style="global")[0].decode()
    assert after.count("# With the leading device axis that run expects.") == 1
    assert ", state).replace(stats=state.stats), " in after.replace("\n    )", ")")
    assert "return [self.first(state, batch) for batch in batches]" in after


def test_a_class_that_maps_before_it_has_the_state_makes_its_specs_when_it_is_traced(tmp_path):
    text = ELSEWHERE.replace("jax.pmap(function,", "jax.pmap(eval_step,")
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert "expects" not in after
    specs = 'jax.tree.map(lambda _: jax.P(), state).replace(stats=jax.P("batch"))'
    written = "".join(after.split())
    assert "self.function=jax.jit(lambdastate,batch:jax.shard_map(" in written
    assert f"in_specs=({''.join(specs.split())}" in written
    assert "print(evaluate(state, batch), evaluator.run(state, batches))" in after


def test_a_state_with_most_of_its_fields_stacked_stays_as_it_is(tmp_path):
    text = PROGRAM.replace("    stats: dict\n", "    stats: dict\n    low: dict\n    high: dict\n")
    text = text.replace("stats=stats)", "stats=stats, low=batch.min(), high=batch.max())")
    text = text.replace('{"mean": jnp.zeros(())})', '{"mean": 0.0}, 0.0, 0.0)')
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert "state_specs" not in after
    assert 'in_specs=jax.P("batch")' in after


NESTED = PROGRAM.replace(
    "    first =",
    """    def evaluate(batch):
        p_eval = jax.pmap(
            lambda state, batch: jax.lax.pmean(batch * state.params["w"], "batch"),
            axis_name="batch",
        )
        return p_eval(state, batch)[0]

    print(evaluate(batches[0]))
    first =""",
)


def test_a_map_of_a_function_inside_uses_the_specs_of_the_function_around_it(tmp_path):
    after = rewritten(tmp_path, NESTED, style="global")[0].decode()
    assert after.count("state_specs = ") == 1
    assert after.count("in_specs=(state_specs, ") == 2


def test_a_state_that_is_returned_in_two_ways_is_no_field_of_another(tmp_path):
    text = PROGRAM.replace(
        "def main(",
        """def synced(state):
    if jax.tree.leaves(state.stats):
        stats = {**state.stats, "mean": jnp.full_like(state.stats["mean"], 0.5)}
        return state.replace(stats=stats)
    return state


def main(""",
    ).replace("        state = p_step(", "        state = synced(state)\n        state = p_step(")
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert "in_specs=(state_specs, " in after


def test_a_step_that_is_not_edited_has_lines_of_the_file_around_it(tmp_path):
    text = (
        PROGRAM.replace("(state, batch):", "(state, batch, rate):", 1)
        .replace("params=params, stats=stats)", "params=params, stats=stats), batch, batch.mean()")
        .replace("jax.pmap(train_step,", "jax.pmap(functools.partial(train_step, rate=0.1),")
        .replace("state = p_step", "state, seen, mean = p_step")
        .replace("import dataclasses", "import dataclasses\nimport functools", 1)
        .replace("    p_step =", "    print(train_step(first, None, 0.1))\n    p_step =")
        .replace("    state = jax.device_put", "    first = state\n    state = jax.device_put")
    )
    after = rewritten(tmp_path, text, style="global")[0].decode()
    function = """
    def sharded_train_step(state, batch):
        state = state.replace(stats=jax.tree.map(lambda x: x[0], state.stats))
        state, seen, mean = train_step(state, batch[0], rate=0.1)
        state = state.replace(stats=jax.tree.map(lambda x: x[None], state.stats))
        return state, seen[None], mean[None]

"""
    assert function in after
    assert max(map(len, after.splitlines())) <= 100


STORED = """\
import collections

import jax
import jax.numpy as jnp

Optimizer = collections.namedtuple("Optimizer", "init update")


def noisy(grads):
    return grads * jax.lax.axis_index("i")


def plain(grads):
    return grads * 0.1


def make_step(optimizer):
    def step(state, batch):
        return state - optimizer.update(jax.lax.pmean(batch.mean() * state, "i"))

    return step


def main(batches, choice):
    p_step = jax.pmap(make_step(optimizers[choice]), "i")
    state = jax.device_put_replicated(jnp.ones(3), jax.local_devices())
    for batch in batches:
        state = p_step(state, batch)
    return state[0]


optimizers = {"used": Optimizer(None, update=USED)}
"""


def test_an_update_that_asks_for_the_device_is_seen_where_it_is_stored(tmp_path):
    unequal = rewritten(tmp_path, STORED.replace("USED", "noisy"), style="global")[0].decode()
    assert "out_specs=jax.P()" not in unequal
    equal = rewritten(tmp_path, STORED.replace("USED", "plain"), style="global")[0].decode()
    assert "out_specs=jax.P()" in equal


def test_a_state_whose_field_is_read_where_that_of_another_differs_has_specs_by_field(tmp_path):
    synced = """def sync(state):
    return state.replace(stats=jax.pmap(lambda x: jax.lax.pmean(x, "i"), "i")(state.stats))


def equal_step(state, batch):
    return state.replace(params=jax.lax.pmean(state.params, "batch"))


def other(batch):
    state = State(0, {"w": jnp.ones(3)}, {"mean": jnp.zeros(())})
    state = jax.device_put_replicated(state, jax.local_devices())
    p_step = jax.pmap(equal_step, axis_name="batch")
    for _ in range(2):
        state = sync(p_step(state, batch))
    return jax.tree.map(lambda x: x[0], state)


def main("""
    text = PROGRAM.replace("def main(", synced, 1).replace(
        "    first =", "    state = sync(state)\n    first ="
    )
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert after.count("state_specs = jax.tree.map(lambda _: jax.P(), state).replace(") == 2


def test_a_state_that_is_assigned_beside_others_has_specs_below_that_statement(tmp_path):
    made = """def initial(rate):
    state = State(0, {"w": jnp.ones(3)}, {"mean": jnp.zeros(())})
    state = jax.device_put_replicated(state, jax.local_devices())
    return rate / 2, state, 0


def main("""
    start = PROGRAM.index("    state = State(")
    end = PROGRAM.index("    p_step")
    text = PROGRAM[:start] + "    rate, state, _ = initial(0.1)\n    print(rate)\n" + PROGRAM[end:]
    after = rewritten(tmp_path, text.replace("def main(", made, 1), style="global")[0].decode()
    specs = "    state_specs = jax.tree.map(lambda _: jax.P(), state).replace("
    assert f"    rate, state, _ = initial(0.1)\n{specs}" in after


FLAX = """\
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import jax_utils
from flax.training import train_state


class TrainState(train_state.TrainState):
    stats: Any


def train_step(state, batch):
    def loss_of(params):
        logits, new = state.apply_fn({"params": params, "stats": state.stats}, batch)
        return logits.mean(), new["stats"]

    (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    grads = jax.lax.pmean(grads, "batch")
    return state.apply_gradients(grads=grads, stats=stats), jax.lax.pmean(loss, "batch")


def main(model, batches):
    params, stats = model.init(jax.random.key(0))
    state = TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.sgd(0.1), stats=stats
    )
    state = jax_utils.replicate(state)
    p_step = jax.pmap(train_step, axis_name="batch")
    for batch in batches:
        state, loss = p_step(state, batch)
    return jax_utils.unreplicate(state).params, loss[0]
"""


def test_a_step_of_flaxs_train_state_differs_in_no_more_than_the_fields_it_is_given(tmp_path):
    after = rewritten(tmp_path, FLAX, style="global")[0].decode()
    specs = 'state_specs = jax.tree.map(lambda _: jax.P(), state).replace(stats=jax.P("batch"))'
    assert specs in after
    assert "return state.params, loss\n" in after


@pytest.mark.parametrize(
    ("before", "after"),
    {
        "its gradients differ": ('    grads = jax.lax.pmean(grads, "batch")\n', ""),
        "another class takes the step": (
            "    stats: Any\n",
            "    stats: Any\n\n    def apply_gradients(self, grads, stats):\n        return 0\n",
        ),
        "it is not Flax's": ("flax.training import", "training.flax import"),
        "it is given more than fields": ("stats=stats), jax", "**{**stats, **batch}), jax"),
        "its optimizer asks for the device": (
            "def main(model, batches):\n",
            """def noisy(grads, state, params):
    return grads * jax.lax.axis_index("batch"), state


optimizer = optax.GradientTransformation(None, noisy)


def main(model, batches):
""",
        ),
    }.values(),
)
def test_a_step_that_may_be_no_step_of_flaxs_train_state_leaves_it_stacked(tmp_path, before, after):
    assert before in FLAX
    text = rewritten(tmp_path, FLAX.replace(before, after), style="global")[0].decode()
    assert "_specs" not in text.replace("in_specs", "").replace("out_specs", "")
    assert 'in_specs=jax.P("batch")' in text


def test_states_of_which_other_fields_differ_have_specs_of_their_own(tmp_path):
    start, end = PROGRAM.index("@jax.tree_util"), PROGRAM.index("if __name__")
    twice = PROGRAM[start:end]
    other = twice.replace("stats", "noise").replace("State", "Noisy").replace("train_step", "other")
    text = (
        PROGRAM[:end]
        + other.replace("def main", "def again")
        + twice.replace("State", "Third")
        .replace("train_step", "third")
        .replace("def main", "def third_time")
    )
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert after.count('.replace(stats=jax.P("batch"))') == 2
    assert after.count('.replace(noise=jax.P("batch"))') == 1


def test_a_method_that_replicates_a_state_but_for_a_field_of_each_device_is_followed(tmp_path):
    text = (
        FLAX.replace(
            "    stats: Any\n",
            """    key: Any

    def replicate(self):
        return jax_utils.replicate(self).replace(key=shard_prng_key(self.key))
""",
        )
        .replace("jax_utils.replicate(state)\n", "state.replicate()\n")
        .replace(", stats=stats)", ", key=jax.random.split(state.key)[0])", 1)
        .replace(", stats=stats", ", key=jax.random.key(1)")
        .replace(
            "import train_state\n",
            "import train_state\n{}\n".format(
                "from flax.training.common_utils import shard_prng_key"
            ),
        )
    )
    after = rewritten(tmp_path, text, style="global")[0].decode()
    assert ".replace(key=shard_prng_key(self.key))\n" in after
    assert 'jax.tree.map(lambda _: jax.P(), state).replace(key=jax.P("batch"))' in after
    assert "    state = state.replicate()\n" in after


@pytest.mark.parametrize(("imported", "is_by_field"), [("", True), ("import other\n", False)])
def test_a_step_of_another_script_is_none_of_a_program_that_does_not_import_it(
    tmp_path, imported, is_by_field
):
    other = "class State:\n    def apply_gradients(self, grads, stats):\n        return stats\n"
    (tmp_path / "other.py").write_text(other)
    (tmp_path / "train.py").write_text(imported + FLAX)
    done = migrate([str(tmp_path)])
    text = next(file.after.decode() for file in done.files if file.path.endswith("train.py"))
    assert ("state_specs" in text) is is_by_field
