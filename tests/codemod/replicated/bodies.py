"""Bodies of pmapped functions, each with the results that differ between devices.

All take ``state``, equal on all devices, and ``batch``, which differs, over the axis "batch".
"""

HEAD = """
import collections, functools, typing
import jax, jax.numpy as jnp, numpy as np
from jax import lax
BATCH = np.arange(32, dtype=np.float32).reshape(8, 4)
STATE = {"w": np.ones((8, 4), np.float32), "s": np.zeros((8,), np.float32)}
def loss(w, x):
    return jnp.mean((x * w - 1) ** 2)
def mean(tree, axis="batch"):
    return jax.tree.map(lambda x: lax.pmean(x, axis_name=axis), tree)
"""
TAIL = """
RESULT = jax.pmap(step, axis_name="batch")(STATE, BATCH)
"""

BODIES = {
    "gradients_are_reduced": ("""
def step(state, batch):
    value, grads = jax.value_and_grad(loss)(state["w"], batch)
    return {**state, "w": state["w"] - lax.pmean(grads, "batch")}, value
""", {1}),
    "in_a_tree_map_of_a_function_of_its_own": ("""
def step(state, batch):
    grads = mean({"w": jax.grad(loss)(state["w"], batch)})
    return jax.tree.map(lambda p, g: p - g, {"w": state["w"]}, grads), batch
""", {1}),
    "jax_is_imported_with_a_module_of_it": ("""
import jax.profiler
class Noise:
    def update(self, x):
        return x + lax.axis_index("batch")
NOISE = [Noise().update]
def step(state, batch):
    key = jax.random.split(jax.random.key(0))[0]
    return state["w"] + jax.random.normal(key), NOISE[0](batch)
""", {1}),
    "a_tree_is_reduced_and_the_result_stored_by_a_key_that_is_computed": ("""
def norm(tree):
    return jax.tree.reduce(lambda a, b: a + jnp.sum(b), tree, initializer=0.0)
def summary(tree, function):
    found = {}
    for name, leaf in tree.items():
        found["/".join([name])] = function(leaf)
    return found
def step(state, batch):
    return summary(state, norm), summary({"x": batch}, norm)
""", {1}),
    "a_reduction_takes_in_what_differs": ("""
def step(state, batch):
    return jax.tree.reduce(lambda a, b: a + b.sum() + batch.sum(), state, 0.0), state["w"]
""", {0}),
    "a_function_that_differs_is_stored_by_a_key_that_is_computed": ("""
def step(state, batch):
    table = {}
    for name in ("a", "b"):
        table[name.upper()] = lambda x: x + batch.sum()
    return table["A"](state["w"]), state["s"]
""", {0}),
    "not_reduced": ("""
def step(state, batch):
    return state["w"] - jax.grad(loss)(state["w"], batch), state
""", {0}),
    "the_gradient_of_a_reduced_loss": ("""
def step(state, batch):
    def total(w):
        return lax.pmean(loss(w, batch), "batch")
    value, grads = jax.value_and_grad(total)(state["w"])
    return value, grads
""", {1}),
    "the_index_of_the_device": ("""
def step(state, batch):
    key = jax.random.fold_in(jax.random.PRNGKey(0), lax.axis_index("batch"))
    noise = jax.random.normal(key, (4,))
    return state["w"] + noise, state["w"] + lax.pmean(noise, "batch")
""", {0}),
    "stored_in_a_dict_by_another_name": ("""
def step(state, batch):
    kept = {}
    alias = kept
    alias["x"] = batch
    return kept, state
""", {0}),
    "appended_to_a_list": ("""
def step(state, batch):
    kept = []
    for i in range(2):
        kept.append(batch * i)
    return sum(kept), state
""", {0}),
    "what_lists_were_given_in_the_rounds_before": ("""
def step(state, batch):
    first, second, third = [state["w"]], [state["w"]], [state["w"]]
    for i in range(4):
        third.append(sum(second))
        second.append(sum(first))
        first.append(batch)
    return sum(third), state
""", {0}),
    "a_dict_with_a_default_is_updated": ("""
def step(state, batch):
    kept = collections.defaultdict(lambda: state["w"])
    kept.update(x=batch)
    return kept["x"], state
""", {0}),
    "one_of_two_dicts_is_updated": ("""
def step(state, batch):
    kept = collections.defaultdict(lambda: state["w"])
    kept = kept if np.asarray(STATE["s"]).any() else collections.OrderedDict()
    kept.update(x=batch)
    return kept["x"], state
""", {0}),
    "a_function_that_the_process_chooses": ("""
def step(state, batch):
    scale = (lambda x: x) if jax.process_index() == 0 else (lambda x: 2 * x)
    if jax.process_index() == 0:
        def shift(x):
            return x + 1
    else:
        def shift(x):
            return x
    return scale(state["w"]), shift(state["w"]), state
""", {0, 1}),
    "one_of_two_reductions": ("""
def step(state, batch):
    reduce = lax.pmean if np.asarray(STATE["s"]).any() else lax.psum
    return reduce(batch, "batch"), (lambda x: x)(batch)
""", {1}),
    "an_item_that_one_of_two_dicts_has": ("""
def step(state, batch):
    table = {"a": jnp.sum} if np.asarray(STATE["s"]).any() else {"b": jnp.sum}
    function = table.get("a")
    kept = state["w"] if function is not None else batch
    return kept, state
""", {0}),
    "bound_by_a_function_inside": ("""
def step(state, batch):
    total = 0.0
    def add(x):
        nonlocal total
        total = total + x
    add(batch)
    return total, state
""", {0}),
    "a_closure_over_the_batch": ("""
def step(state, batch):
    def scaled(w):
        return w * batch
    return scaled(state["w"]), lax.psum(scaled(state["w"]), "batch")
""", {0}),
    "a_loop_that_breaks": ("""
def step(state, batch):
    x = state["w"]
    for i in range(3):
        x = x + batch
        if i == 1:
            break
        x = lax.pmean(x, "batch")
    return x, state
""", {0}),
    "a_path_that_does_not_reduce": ("""
SYNC = len(BATCH) > 100
def step(state, batch):
    x = batch
    if SYNC:
        x = lax.pmean(x, "batch")
    return x, state
""", {0}),
    "a_scan_whose_carry_is_reduced": ("""
def step(state, batch):
    def body(w, x):
        w = w - lax.pmean(jax.grad(loss)(w, x), "batch")
        return w, x
    w, seen = lax.scan(body, state["w"], jnp.stack([batch, batch]))
    return w, seen
""", {1}),
    "a_scan_with_numbers_of_an_object_that_has_functions": ("""
import types
OPTIONS = types.SimpleNamespace(rate=0.5, schedule=lambda count: 0.5 * count)
def step(state, batch):
    def body(carry, x):
        return OPTIONS.rate * carry + x, x
    seen, _ = lax.scan(body, batch, jnp.stack([batch, batch]))
    return state["w"] - lax.pmean(seen, "batch"), seen
""", {1}),
    "a_scan_with_functions_of_an_object_that_ask_for_the_device": ("""
import types
OPTIONS = types.SimpleNamespace(rate=0.5, schedule=lambda count: count + lax.axis_index("batch"))
def step(state, batch):
    # In the scan itself, XLA of JAX 0.8 does not compile axis_index.
    shift = OPTIONS.schedule(0.0)
    def body(carry, x):
        return carry + shift, x
    w, _ = lax.scan(body, state["w"], jnp.stack([batch, batch]))
    return w, state["w"]
""", {0}),
    "a_scan_whose_carry_is_not": ("""
def step(state, batch):
    def body(carry, x):
        w, s = carry
        return (lax.pmean(w * x, "batch"), s + x.sum()), None
    (w, s), _ = lax.scan(body, (state["w"], state["s"]), jnp.stack([batch, batch]))
    return w, s
""", {1}),
    "a_carry_that_varies_later": ("""
def step(state, batch):
    def body(i, carry):
        a, b = carry
        return b, batch.sum()
    return lax.fori_loop(0, 3, body, (state["s"], state["s"])), state
""", {0}),
    "a_while_loop_of_varying_length": ("""
def step(state, batch):
    def body(carry):
        i, n = carry
        return i + 1, n
    i, n = lax.while_loop(lambda c: c[0] < c[1], body, (state["s"], batch.sum()))
    return i, state
""", {0}),
    "a_varying_choice_of_equal_values": ("""
def step(state, batch):
    chosen = lax.cond(batch[0] > 8, lambda: state["w"], lambda: -state["w"])
    return chosen, jnp.where(batch > 8, 1.0, 0.0), state
""", {0, 1}),
    "groups_of_devices": ("""
def step(state, batch):
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    return lax.psum(batch, "batch", axis_index_groups=halves), state
""", {0}),
    "another_axis": ("""
def step(state, batch):
    def one(x):
        return lax.pmean(x, "inner")
    inner = jax.vmap(one, axis_name="inner")(batch)
    return inner, lax.pmean(inner, "batch")
""", {0}),
    "a_namedtuple_of_both": ("""
class State(typing.NamedTuple):
    w: typing.Any
    stats: typing.Any
def step(state, batch):
    new = State(w=state["w"] - mean(jax.grad(loss)(state["w"], batch)), stats=batch.mean())
    new = new._replace(w=new.w * 2)
    return new.w, new.stats
""", {1}),
    "methods_of_an_object": ("""
class Trainer:
    def __init__(self, axis):
        self.axis = axis
    def reduce(self, x):
        return lax.pmean(x, self.axis)
    def keep(self, x):
        return x
trainer = Trainer("batch")
def step(state, batch):
    return trainer.reduce(batch), trainer.keep(batch)
""", {1}),
    "a_method_that_a_class_replaces": ("""
class Trainer:
    def reduce(self, x):
        return lax.pmean(x, "batch")
    def update(self, state, batch):
        return self.reduce(batch), state
class Local(Trainer):
    def reduce(self, x):
        return x
trainer = Local()
def step(state, batch):
    return trainer.update(state, batch)
""", {0}),
    "an_object_that_the_body_changes": ("""
class Box:
    pass
box = Box()
box.x = 0.0
def step(state, batch):
    box.x = batch
    y = box.x
    box.x = 0.0
    return y, state
""", {0}),
    "a_function_given_as_an_argument": ("""
def apply(reduce, x):
    return reduce(x)
def step(state, batch):
    both = functools.partial(apply, x=batch)
    return both(lambda x: lax.pmean(x, "batch")), both(lambda x: x)
""", {1}),
    "what_a_condition_on_the_shape_chooses": ("""
def step(state, batch):
    if batch.ndim == 1:
        w = state["w"]
    else:
        w = -state["w"]
    return w, batch.shape[0] * state["w"]
""", set()),
    "a_default_that_reduces": ("""
def step(state, batch, reduce=lambda x: lax.psum(x, "batch")):
    return reduce(batch), reduce(batch) + batch
""", {1}),
    "a_comprehension_and_an_unpacking": ("""
def step(state, batch):
    parts = [lax.pmean(x, "batch") for x in (batch, batch * 2)]
    first, *others = (state["w"], batch)
    return parts, first, others
""", {1, 2}),
    "updated_in_place": ("""
def step(state, batch):
    new = dict(w=state["w"])
    new.update(s=batch.sum())
    return new["w"], new
""", {1}),
    "an_array_that_is_set_in_part": ("""
def step(state, batch):
    w = state["w"].at[0].set(batch[0])
    return w, state["w"].at[0].set(lax.pmax(batch[0], "batch"))
""", {0}),
    "gathered_and_permuted": ("""
def step(state, batch):
    ring = [(i, (i + 1) % 8) for i in range(8)]
    return lax.all_gather(batch, "batch"), lax.ppermute(state["w"], "batch", ring)
""", {1}),
    "a_function_that_calls_itself": ("""
def power(x, n):
    return x if n == 0 else x * power(x, n - 1)
def step(state, batch):
    return power(state["w"], 3), power(batch, 3)
""", {1}),
    "numbers_by_numpy": ("""
def step(state, batch):
    return state["w"] * np.random.RandomState(0).normal(), state
""", {0}),
    "a_branch_of_python_on_what_is_equal": ("""
class Config:
    clip = True
def step(state, batch):
    grads = lax.pmean(jax.grad(loss)(state["w"], batch), "batch")
    if Config.clip:
        grads = jnp.clip(grads, -1, 1)
    try:
        new = state["w"] - grads
    except ValueError:
        new = batch
    return new, grads
""", {0}),
    "a_name_that_a_comprehension_assigns": ("""
def step(state, batch):
    several = [last := 2 * x for x in (state["w"], batch)]
    return last, several[0] * 0 + state["w"], state["w"]
""", {0, 1}),
    "an_item_of_a_list_that_is_replaced": ("""
def step(state, batch):
    pairs = [{"first": state["w"], "second": batch}]
    pairs[0] = {"first": batch, "second": state["w"]}
    return pairs[0]["first"], state["w"]
""", {0}),
    "a_method_and_a_function_of_the_same_name": ("""
def scaled(x):
    return x * lax.axis_index("batch")
class Model:
    def scaled(self, x):
        return x
    def __call__(self, x):
        return scaled(x)
MODEL = Model()
def step(state, batch):
    return MODEL(state["w"]), MODEL.scaled(state["w"])
""", {0}),
    "a_method_of_a_list_that_a_function_calls": ("""
def step(state, batch):
    found = []
    jax.tree.map(found.append, {"x": batch})
    return found[0], state["w"]
""", {0}),
    "a_method_of_a_list_with_a_name": ("""
def step(state, batch):
    found = [state["w"]]
    add = found.append
    add(batch)
    return found[-1], state["w"]
""", {0}),
    "a_function_that_stores_in_its_argument": ("""
import operator
def step(state, batch):
    found, table = [state["w"]], {"x": state["w"]}
    list.append(found, batch)
    operator.setitem(table, "x", batch)
    return found[-1], table["x"], state["w"]
""", {0, 1}),
    "a_default_whose_name_is_bound_again": ("""
def step(state, batch):
    x = batch
    later = lambda y, x=x: y + x
    def also(y, *, x=x):
        return y + x
    x = state["w"]
    return later(x), also(x), x
""", {0, 1}),
    "a_default_in_a_loop": ("""
def step(state, batch):
    found = []
    for x in (state["w"], batch):
        found.append(lambda y, x=x: y + x)
    return found[0](state["w"]), state["w"]
""", {0}),
    "a_function_that_some_devices_leave_early": ("""
def fill(table, w):
    if jax.process_index() == 0:
        return
    table["w"] = 2 * w
def step(state, batch):
    table = {"w": state["w"]}
    fill(table, state["w"])
    return table["w"], state["w"]
""", {0}),
    "an_attribute_of_a_class_that_is_set": ("""
class Config:
    value = None
def step(state, batch):
    Config.value = batch
    return Config.value, state["w"]
""", {0}),
    "a_property_that_is_set": ("""
class Box:
    def __init__(self):
        self._x = 0.0
    @property
    def x(self):
        return self._x
    @x.setter
    def x(self, x):
        self._x = x
def step(state, batch):
    box = Box()
    box.x = batch
    return box.x, box._x, state["w"]
""", {0, 1}),
    "a_property_that_asks_for_the_device": ("""
class Base:
    @property
    def noise(self):
        return lax.axis_index("batch")
class Model(Base):
    pass
MODEL = Model()
def step(state, batch):
    return state["w"] + MODEL.noise, state["w"]
""", {0}),
    "a_property_of_what_is_equal": ("""
class Model:
    def __init__(self):
        self.scale = 2.0
    @property
    def rate(self):
        return self.scale / 2
MODEL = Model()
def step(state, batch):
    return state["w"] * MODEL.rate, batch * MODEL.rate
""", {1}),
    "items_that_move": ("""
def step(state, batch):
    first, second, third = [state["w"], batch], [state["w"], batch], [state["w"], batch]
    first.reverse()
    del second[0]
    third.pop(0)
    return first[0], second[0], third[0], state["w"]
""", {0, 1, 2}),
    "a_list_in_a_table": ("""
def step(state, batch):
    table, kept = {}, [state["w"]]
    table.setdefault("a", []).append(batch)
    other = {"b": kept}
    other.get("".join(["b"])).append(batch)
    return table["a"][0], kept[-1], state["w"]
""", {0, 1}),
    "one_of_two_tables_is_changed": ("""
def step(state, batch):
    first, second = {"x": state["w"]}, {"x": state["w"]}
    chosen = first if len(first) else second
    chosen["x"] = batch
    return first["x"], state["w"]
""", {0}),
    "a_list_in_lists_made_of_others": ("""
def step(state, batch):
    first, second, third = [state["w"]], [state["w"]], [state["w"]]
    ([first] * 2)[1].append(batch)
    ([second] + [[]])[0].append(batch)
    for each, x in zip([third], [batch]):
        each.append(x)
    return first[-1], second[-1], third[-1], state["w"]
""", {0, 1, 2}),
    "a_custom_derivative_of_a_function_of_the_module": ("""
@jax.custom_jvp
def same(x):
    return x
@same.defjvp
def derivative(primals, tangents):
    return same(primals[0]), tangents[0] * lax.axis_index("batch")
def step(state, batch):
    return jax.grad(lambda w: same(w).sum())(state["w"]), state["w"]
""", {0}),
    "an_operator_that_asks_for_the_device": ("""
class Noise:
    def __add__(self, x):
        return x + lax.axis_index("batch")
NOISE = Noise()
def step(state, batch):
    return NOISE + state["w"], state["w"]
""", {0, 1}),
    "a_derivative_of_another_kind": ("""
def step(state, batch):
    out, back = jax.vjp(lambda w: lax.psum(w * batch, "batch"), state["w"])
    return out, back(state["w"])[0]
""", {0, 1}),
}  # fmt: skip
