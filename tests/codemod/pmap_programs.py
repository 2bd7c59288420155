"""Small programs with pmap, by the form that each shows; each sets RESULT."""

HEAD = """
import functools
import jax, jax.numpy as jnp, numpy as np
ROWS = np.arange(32.0, dtype=np.float32).reshape(8, 4) / 7
W = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)
def train_step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch * w - 1) ** 2))(state["w"])
    grads = jax.lax.pmean(grads, axis_name="batch")
    state = {"w": state["w"] - 0.1 * grads, "n": state["n"] + 1}
    return state, {"loss": jax.lax.pmean(loss, "batch"), "own": loss}
STATE = {"w": np.stack([W[0]] * 8), "n": np.zeros(8, np.int32)}
"""

PROGRAMS = {
    "a_name": """
step = jax.pmap(train_step, axis_name="batch")
state = STATE
for _ in range(3):
    state, metrics = step(state, ROWS)
RESULT = state, metrics
""",
    "donated": """
step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
state, _ = step(jax.device_put(STATE), ROWS)
before = state
state, metrics = step(state, ROWS)
RESULT = state, metrics, [leaf.is_deleted() for leaf in jax.tree.leaves(before)]
""",
    "no_axis_name": "f = jax.pmap(lambda x: (x ** 2).sum())\nRESULT = f(ROWS)\n",
    "positional_axis_name": "f = jax.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')\nRESULT = f(ROWS)\n",
    "named_axis": """
AXIS = "batch"
f = jax.pmap(lambda x: jax.lax.all_gather(x, AXIS), axis_name=AXIS)
RESULT = f(ROWS)
""",
    "in_axes": """
f = jax.pmap(lambda a, b, c: (a + b["x"] + c, b["y"]), in_axes=(1, {"x": 0, "y": None}, None))
RESULT = f(ROWS.T, {"x": ROWS, "y": np.float32(3)}, 2)
""",
    "in_axes_None": "f = jax.pmap(lambda a, b: a * b, in_axes=(0, None))\nRESULT = f(ROWS, W[0])\n",
    "in_axes_list": "f = jax.pmap(lambda a, b: a * b, in_axes=[0, None])\nRESULT = f(ROWS, W[0])\n",
    "out_axes": """
f = jax.pmap(
    lambda x: (x, jax.lax.psum(x, "i"), {"s": x.sum()}), axis_name="i", out_axes=(1, None, 0)
)
RESULT = f(ROWS)
""",
    "scalars_returned": "f = jax.pmap(lambda x: (1, 2.5, x[0], None))\nRESULT = f(ROWS)\n",
    "decorators_with_static_arguments": '''
class Base:
    scale = 3

    def scaled(self, x):
        return x * self.scale

class Sampler(Base):
    @functools.partial(jax.pmap, static_broadcasted_argnums=(0,))
    def draw(self, key):
        """Draws a sample."""
        # The key of a device.
        text = """several
    lines"""
        return jax.random.normal(key, (len(text), self.scale))

    @functools.partial(jax.pmap, static_broadcasted_argnums=0)
    def scaled(self, x):
        return super().scaled(x) + 1

@functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=1)
def split(key, count, salt=7):
    def per_device(key):
        return jax.random.fold_in(key, salt)

    return tuple(jax.random.split(per_device(key), count))

@functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=(1,))
def changed(x, power):
    power = power + 1
    return jax.lax.pmean(x**power, "i")

@functools.partial(jax.pmap, static_broadcasted_argnums=(1,))
def times(mesh, by): return mesh * by

KEYS = jax.random.split(jax.random.PRNGKey(0), 8)
RESULT = Sampler().draw(KEYS), Sampler().scaled(ROWS), split(KEYS, 3), changed(ROWS, 2), times(W, 4)
''',
    "donated_past_the_last_argument": """
@functools.partial(jax.pmap, axis_name="i", donate_argnums=(0, 2))
def step(w, x):
    return w - jax.lax.pmean(x, "i")
f = jax.pmap(train_step, axis_name="batch", donate_argnums=5)
RESULT = step(jnp.array(W), ROWS), f(STATE, ROWS)
""",
    "static": """
f = jax.pmap(lambda how, x, n: getattr(jnp, how)(x) * n, static_broadcasted_argnums=(0, 2))
RESULT = f("sin", ROWS, 3), f("cos", ROWS, 2)
""",
    "static_int_and_in_axes": """
f = jax.pmap(
    lambda x, n, y: x * n + y,
    in_axes=(0, None, None),
    static_broadcasted_argnums=1,
    donate_argnums=(),
)
RESULT = f(ROWS, 3, W[0])
""",
    "keywords": "f = jax.pmap(lambda x, y: x - y)\nRESULT = f(ROWS, y=W), f(y=W, x=ROWS)\n",
    "devices": """
f = jax.pmap(lambda x: x + jax.lax.axis_index("i"), axis_name="i", devices=jax.devices()[::-1])
y = f(ROWS)
shards = sorted(y.addressable_shards, key=lambda shard: shard.index[0].start)
RESULT = y, [shard.device.id for shard in shards]
""",
    "devices_or_none": """
class Doubling:
    def __init__(self, devices=None):
        self.devices = devices
        self.step = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i", devices=self.devices)
def negative(x):
    if len(x) < len(jax.devices()):
        devices = jax.devices()[:len(x)]
    else:
        devices = None
    return jax.pmap(lambda x: -x, devices=devices)(x)
RESULT = Doubling().step(ROWS), Doubling(jax.devices()[:3]).step(ROWS[:3])
RESULT = RESULT, negative(ROWS), negative(ROWS[:2])
""",
    "backend": "f = jax.pmap(lambda x: x + 1, backend='cpu')\nRESULT = f(ROWS)\n",
    "fewer_rows": """
f = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")
RESULT = f(ROWS[:3]), f(ROWS[:1])
""",
    "at_once": "RESULT = jax.pmap(train_step, axis_name='batch')(STATE, ROWS)\n",
    "at_once_in_a_function": """
TRACES = []
def square(x):
    TRACES.append(1)
    return x * x
def run(x):
    return jax.pmap(square)(x)
for _ in range(3):
    y = run(ROWS)
RESULT = y
""",
    "partial_decorator": """
@functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=(1,), donate_argnums=0)
def f(x, n):
    return jax.lax.pmean(x, "i") * n
RESULT = f(ROWS, 3)
""",
    "decorators_below_and_many_static_arguments": """
def as_it_is(f):
    return lambda *args: f(*args)
STATIC = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
@functools.partial(
    jax.pmap, axis_name="i", static_broadcasted_argnums=(2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
@functools.partial(jax.jit, static_argnums=STATIC)
@as_it_is
def f(positions, targets, scale, noise, is_shifted, *rest):
    return jax.lax.pmean(positions * scale, "i") + targets * noise + rest[0] * is_shifted
RESULT = f(ROWS, W, 3, 0.5, True, 1, 2, 3, 4, 5, 6, 7)
""",
    "static_before_any_number_of_arguments": """
class Model:
    def __init__(self, scale):
        self.scale = scale
    @functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=(0,))
    def step(self, state, *rows):
        total = jax.lax.pmean(sum(row.sum() for row in rows), "i")
        return {"w": state["w"] * self.scale + total}
def weighted(how, *rows):
    weight, *rows = rows
    return getattr(jnp, how)(sum(rows)) * weight
f = jax.pmap(weighted, static_broadcasted_argnums=0)
model = Model(2.0)
RESULT = model.step(STATE, ROWS), model.step(STATE, ROWS, W), Model(3.0).step(STATE, W)
RESULT = RESULT, f("sin", ROWS, W), f("cos", ROWS, W, ROWS)
""",
    "decorator": "@jax.pmap\ndef f(x):\n    return x + 1\nRESULT = f(ROWS)\n",
    "partial_kept": """
pmap = functools.partial(jax.pmap, axis_name="i")
f = pmap(lambda x: jax.lax.psum(x, "i"))
g = pmap(lambda x, y: jax.lax.psum(x, "i") + y, in_axes=(0, None), donate_argnums=(0,))
RESULT = f(ROWS), g(ROWS, W[0])
""",
    "partial_kept_in_a_loop": """
def evaluate(scale, x, *, task):
    return jax.lax.psum(x, "i") * scale + task
def run(x):
    found = []
    for task in range(2):
        over_devices = functools.partial(jax.pmap, axis_name="i", static_broadcasted_argnums=(0,))
        f = over_devices(functools.partial(evaluate, task=task))
        found.append(f(2, x))
    return found
RESULT = run(ROWS)
""",
    "partial_called": """
f = functools.partial(jax.pmap, axis_name="i")(lambda x: jax.lax.psum(x, "i"), out_axes=None)
RESULT = f(ROWS)
""",
    "of_a_partial": """
def scale(k, x, *, shift):
    return x * k + shift
f = jax.pmap(functools.partial(scale, 2.0, shift=1.0))
RESULT = f(ROWS)
""",
    "method": """
class Trainer:
    def __init__(self, rate):
        self.rate = rate
        self.step = jax.pmap(self._step, axis_name="i")
    def _step(self, w, x):
        return w - self.rate * jax.lax.pmean(x, "i")
    @functools.partial(jax.pmap, static_broadcasted_argnums=(0,))
    def mapped(self, x):
        return x * self.rate
t = Trainer(0.5)
RESULT = t.step(W, ROWS), t.mapped(ROWS)
""",
    "wrapper": """
def my_pmap(f, **options):
    return jax.pmap(f, axis_name="batch", **options)
def plain_pmap(f):
    return jax.pmap(f, axis_name="batch")
RESULT = my_pmap(train_step, donate_argnums=())(STATE, ROWS), plain_pmap(train_step)(STATE, ROWS)
""",
    "value": """
def apply(map_fn, x):
    return map_fn(lambda v: v * 2)(x)
chosen = jax.pmap if jax.device_count() > 1 else jax.vmap
RESULT = apply(jax.pmap, ROWS), chosen(lambda v: v + 1)(ROWS)
""",
    "comments_inside": """
f = jax.pmap(
    train_step,  # the step
    # the axis of the gradients
    axis_name="batch",
)
RESULT = f(STATE, ROWS)
""",
    "other_names": """
from jax import pmap, lax
from jax import pmap as pm
import jax as j
RESULT = pmap(abs)(W), pm(lambda x: -x)(W), j.pmap(lambda x: lax.psum(x, "i"), axis_name="i")(W)
""",
    "under_grad_and_jit": """
f = jax.pmap(lambda w, x: jnp.sum(w * x) ** 2)
RESULT = jax.grad(lambda w: f(w, ROWS).sum())(W), jax.jit(lambda w: f(w, ROWS) + 1)(W)
""",
    "keys": """
keys = jax.random.split(jax.random.key(3), 8)
f = jax.pmap(lambda key, x: (jax.random.key_data(key), x + jax.random.normal(key, x.shape)))
RESULT = f(keys, ROWS)
""",
    "lowered": """
f = jax.pmap(lambda x: x * 3)
RESULT = f.lower(ROWS).compile()(jax.device_put(f(ROWS)))
""",
    "replicated_and_sharded": """
devices = jax.local_devices()
state = jax.device_put_replicated({"w": W[0], "n": 0}, devices)
batch = jax.device_put_sharded(list(ROWS), devices)
step = jax.pmap(train_step, axis_name="batch")
state, metrics = step(state, batch)
RESULT = state, jax.tree.map(lambda x: x[0], metrics), batch, len(state["w"].addressable_shards)
""",
    "sharded_from_placed_arrays": """
devices = jax.local_devices()
placed = [{"x": jax.device_put(x, device)} for x, device in zip(ROWS, devices)]
batch = jax.device_put_sharded(placed, devices)
RESULT = jax.pmap(lambda x: jax.lax.psum(x["x"], "i"), axis_name="i")(batch), batch
""",
    "shards_that_are_placed": """
devices = jax.local_devices()
placed = [jax.device_put(row, device) for row, device in zip(ROWS, devices)]
trees = []
for row, device in zip(ROWS, devices):
    trees.append(jax.device_put({"x": row}, device))
RESULT = jax.pmap(lambda x, tree: x + tree["x"])(
    jax.device_put_sharded(placed, devices), jax.device_put_sharded(trees, devices)
)
""",
    "vmapped_lambda": """
f = jax.pmap(jax.vmap(lambda x: x.sum() * 2))
g = jax.pmap(jax.vmap(lambda w, x: x * w.sum(), in_axes=(None, 0)), in_axes=(None, 0))
each = jax.vmap(lambda x: x.sum() * 3)
RESULT = f(ROWS), g(W[0], ROWS), jax.pmap(each)(ROWS)
""",
    "vmapped_function": """
def scaled(w, x):
    return w.sum() * x.sum(), x * 2
def shifted(w, x):
    return w.sum() + x.sum(), x * 2
f = jax.pmap(jax.vmap(scaled, in_axes=(None, 0)), in_axes=(None, 0))
each = jax.vmap(shifted, in_axes=(None, 0))
RESULT = f(W[0], ROWS), jax.pmap(each, in_axes=(None, 0))(W[0], ROWS)
""",
    "first_result_in_parentheses": """
def f(w, x):
    a = x * w
    return (a), {"sum": x.sum()}
def g(w, x):
    return (
        {"x": x * w}), (
        {"sum": x.sum()})
def h(w, x):
    return (x * w,)
maps = [jax.pmap(f, in_axes=(None, 0)), jax.pmap(g, in_axes=(None, 0))]
RESULT = maps[0](2.0, ROWS), maps[1](3.0, ROWS), jax.pmap(h, in_axes=(None, 0))(4.0, ROWS)
""",
    "over_vmap": """
def chain(key, x, steps):
    return x + steps * jax.random.normal(key, x.shape), x.mean()
def score(x, scale):
    return scale * x.sum()
@jax.pmap
@jax.vmap
def total(x):
    return x.sum()
keys, x = jax.random.split(jax.random.PRNGKey(0), 16), jnp.arange(48.0).reshape(8, 2, 3)
run = jax.pmap(jax.vmap(chain, in_axes=(0, 0, None)), in_axes=(0, 0, None),
               static_broadcasted_argnums=2)
each = jax.vmap(score, in_axes=(0, None))
moved, means = run(keys.reshape((8, 2) + keys.shape[1:]), x, 3)
RESULT = moved, means.reshape(-1), jax.pmap(each, in_axes=(0, None))(x, 2.0), total(x), jax.pmap(
    jax.vmap(lambda x: x.sum()))(x)
""",
    "static_arguments_first_and_last": """
class Trainer:
    @functools.partial(jax.pmap, in_axes=(None, 0, None, None), static_broadcasted_argnums=(0, 3))
    def unroll(self, x, w, with_sum):
        return (x * w, x.sum()) if with_sum else (x, x)
RESULT = Trainer().unroll(ROWS, 2.0, True), Trainer().unroll(ROWS, 2.0, False)
""",
    "computed_axes": """
def f(a, b, c, w):
    return a + b + c * w
g = jax.pmap(f, in_axes=(0,) * 3 + (None,), donate_argnums=list(range(0)))
RESULT = g(ROWS, ROWS, ROWS, 2.0)
""",
    "called_lambda": """
f = jax.pmap(lambda w, x: (lambda first_of_both, second_of_both: first_of_both * second_of_both + w)(x, x + 1.0), in_axes=(None, 0))
g = jax.pmap(lambda w, x: (jnp.add if x.shape[0] > 1000 else jnp.subtract)(x * w * 1000000, jnp.asarray(x + 1.0)), in_axes=(None, 0))
around = (lambda y, z: y + z)(jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(ROWS), ROWS)
chosen = (jnp.sin if len(ROWS) > 3 else jnp.cos)(jax.pmap(lambda x: x * 2, axis_name="i")(ROWS))
RESULT = f(2.0, ROWS), g(2.0, ROWS), around, chosen
""",  # noqa: E501
    "removed_name_imported": """
from jax import device_put_replicated, tree_util as tu
RESULT = device_put_replicated((W[0], 1), jax.devices()[:4])
""",
    "collectives": """
@functools.partial(jax.pmap, axis_name="i")
def f(x):
    i = jax.lax.axis_index("i")
    turned = jax.lax.ppermute(x, "i", [(k, (k + 1) % 8) for k in range(8)])
    best = jax.lax.pmax(x, "i"), jax.lax.pmin(x, "i")
    return i, turned, best, jax.lax.all_gather(x, "i"), jax.lax.psum_scatter(jnp.ones(8) * i, "i")
RESULT = f(ROWS)
""",
    "negative_axes": """
LAST = -1
f = jax.pmap(lambda a, b: (a, {"x": a + b["x"].sum(), "y": b["y"]}),
             in_axes=(LAST, {"x": -2, "y": None}), out_axes=(-1, {"x": 0, "y": None}))
RESULT = f(ROWS.T, {"x": ROWS, "y": np.float32(3)}), jax.pmap(lambda x: x * 2, out_axes=-1)(ROWS)
""",
    "nested": """
def f(x):
    return x * jax.lax.pmax(x, "j"), jax.lax.psum(x, ("i", "j")), jax.lax.pmean(x, "j")
g = jax.pmap(jax.pmap(f, axis_name="j"), axis_name="i")
RESULT = g(ROWS.reshape(4, 2, 4)), g(ROWS.reshape(2, 4, 4))
""",
    "nested_axes": """
inner = jax.pmap(lambda w, x: (w * x, jax.lax.psum(x, "j")), "j", in_axes=(None, 1), out_axes=1)
outer = jax.pmap(lambda w, x: inner(w, x), "i", in_axes=(None, 0), out_axes=0)
RESULT = outer(W[0], ROWS.reshape(2, 4, 4).transpose(0, 2, 1)), inner(W[0], ROWS.T)
""",
    "nested_by_decorators": """
@functools.partial(jax.pmap, axis_name="i")
@functools.partial(jax.pmap, axis_name="j", donate_argnums=())
def f(x):
    return jax.lax.psum(x, "i") - jax.lax.pmax(x, "j")
RESULT = f(ROWS.reshape(2, 4, 4))
""",
    "nested_by_calls": """
inner = jax.pmap(lambda x: (x ** 2, jax.lax.psum(x, "i")), axis_name="j")
def shifted(x):
    return inner(x + 1)
@functools.partial(jax.pmap, axis_name="i", in_axes=(0, None))
def outer(x, w):
    squares, total = shifted(x)
    return jax.lax.pmean(squares.sum(0), "i") * w, total
RESULT = outer(ROWS.reshape(4, 2, 4), 3.0), inner.lower, jax.pmap(abs)(ROWS)
RESULT = RESULT[0], RESULT[2]
""",
    "nested_index": """
f = lambda x: x * jax.lax.axis_index("i") + jax.lax.axis_index("j")
RESULT = jax.pmap(jax.pmap(f, axis_name="j"), axis_name="i")(ROWS.reshape(4, 2, 4))
""",
    "nested_with_values_of_the_outer": """
def step(w, batch, key):
    noise = jax.random.normal(key, w.shape) * jax.lax.axis_index("i")
    def on_a_device(batch, scale):
        grad = (w + noise) * batch["x"] * scale + jax.lax.axis_index("j")
        return {"w": w - jax.lax.pmean(jax.lax.pmean(grad, "j"), "i"), "own": grad.sum()}
    return jax.pmap(on_a_device, axis_name="j", in_axes=(0, None))(batch, noise.sum())
p_step = jax.pmap(step, axis_name="i")
batch = {"x": ROWS.reshape(4, 2, 4)}
RESULT = p_step(W[:4], batch, jax.random.split(jax.random.PRNGKey(0), 4))
""",
    "nested_and_gathered": """
@functools.partial(jax.pmap, axis_name="i", in_axes=(0, None))
def step(x, w):
    inner = jax.pmap(lambda v, u: (v - jax.lax.pmean(v, "j")) * u + w, axis_name="j")
    first = inner(x, x * 2)
    second = inner(x, first)
    return first.sum() + jax.lax.psum(second, "i")[0], jax.lax.axis_index("i")
# Whole numbers, whose sums are the same in any order.
PAIRS = np.round(ROWS * 7).reshape(4, 2, 4)
RESULT = step(PAIRS, 3.0)
""",
    "nested_and_decorated": """
GROUPS, MEMBERS = 2, 4
@functools.partial(jax.pmap, axis_name="member")
def centered(x):
    return x - jax.lax.pmean(x, "member") + jax.lax.axis_index("group")
over_groups = jax.pmap(lambda x: centered(x), axis_name="group")
def main():
    x = ROWS.reshape((GROUPS, MEMBERS, 4))
    return over_groups(x)
RESULT = main()
""",
    "three_deep": """
f = lambda x: x + jax.lax.psum(x, ("a", "c")) * jax.lax.pmax(x, "b")
RESULT = jax.pmap(jax.pmap(jax.pmap(f, "c"), "b"), "a")(ROWS.reshape(2, 2, 2, 4))
""",
    "options_in_each_call": """
TRACES = []
def square(x):
    TRACES.append(1)
    return x * x
def run(x):
    return jax.pmap(square, devices=jax.devices(), in_axes=[0], out_axes={"y": 0}["y"])(x)
for _ in range(3):
    y = run(ROWS)
RESULT = y
""",
    "wrapper_in_each_call": """
TRACES = []
class Model:
    def step(self, x):
        TRACES.append(1)
        return {"y": x * x}
def my_pmap(f, **options):
    return jax.pmap(f, axis_name="batch", **options)
model = Model()
for _ in range(3):
    y = my_pmap(model.step, out_axes={"y": 1}, donate_argnums=())(ROWS)
RESULT = y
""",
    "lambda_in_a_loop": """
scale = []
for k in range(3):
    scale.append(jax.pmap(lambda x: x * k)(ROWS))
RESULT = scale
""",
    "lambdas_with_defaults": """
first = [jax.pmap(lambda x, k=k: x * k) for k in range(3)]
second = []
for k in range(3):
    second.append(jax.pmap(lambda x, *, k=k: x * k, axis_name="i"))
def functions():
    for k in range(3):
        def scaled(x, k=k):
            return x * k
        yield jax.pmap(scaled, axis_name="i")
RESULT = [f(ROWS) for f in first + second + list(functions())]
""",
    "function_of_each_iteration": """
each = []
for k in range(3):
    def scaled(x):
        return x * k
    each.append(jax.pmap(scaled)(ROWS))
    chosen = jnp.sin if k else jnp.cos
    each.append(jax.pmap(chosen)(ROWS))
RESULT = each
""",
    "attribute_that_is_bound_again": """
class Model:
    def __init__(self):
        self.f = self.plus
        self.mapped = jax.pmap(self.f, axis_name="i")
    def plus(self, x):
        return x + 1
model = Model()
first = model.mapped(ROWS)
model.f = lambda x: x * 7
RESULT = [first, model.mapped(ROWS[:, :2])]
""",
    "axis_size_without_arguments": """
index = jax.pmap(lambda: jax.lax.axis_index("i") * 1.0, axis_name="i", axis_size=4)
RESULT = index()
""",
    "function_that_is_bound_again": """
def change(x):
    return x + 1
def mapped():
    return jax.pmap(change)(ROWS)
first = mapped()
change = lambda x: x * 3
RESULT = first, mapped()
""",
    "none_in_some_calls": """
def error(w, x, mask):
    each = (x - w) ** 2
    if mask is not None:
        each = each * mask
    return jax.lax.pmean(each.sum(), "batch")
p_error = jax.pmap(error, axis_name="batch")
RESULT = p_error(W, ROWS, None), p_error(W, ROWS, np.ones((8, 4), np.float32) / 2)
""",
    "devices_of_the_caller": """
class Server:
    def __init__(self, w, devices=None):
        self.devices = devices or jax.local_devices()
        self.w = jax.device_put_replicated(w, self.devices)
        self.scale = jax.pmap(lambda w, x: w * x, devices=self.devices)
    def __call__(self, x):
        return self.scale(self.w, x[: len(self.devices)])
RESULT = Server(W[0])(ROWS), Server(W[0], jax.local_devices()[4:])(ROWS)
""",
    "rows_to_the_host": """
step = jax.pmap(train_step, axis_name="batch")
state, metrics = step(STATE, ROWS)
total = jax.pmap(lambda x: jnp.sum(x), out_axes=0)(ROWS)
columns = jax.pmap(lambda x: x * 2, out_axes=1)(ROWS)
loss = float(metrics["loss"][0])
saved = jax.device_get(jax.tree.map(lambda x: x[0], state))
first = np.asarray(columns[0])
kept = jax.tree.map(lambda x: x[0], metrics)
print(total[0], total[0].item(), int(total[0]))
RESULT = loss, saved, first, kept, float(total[0]), np.asarray(total[1])
""",
    "function_that_is_made_again": """
def make(scale):
    def scaled(x):
        return {"y": x.sum() * scale}
    return scaled
double, triple = make(2), make(3)
once = make(4)(ROWS[0])
double = jax.pmap(double)
triple = jax.pmap(triple)
RESULT = double(ROWS), triple(ROWS), once
""",
    "pipeline": """
def shard(xs):
    return jax.tree.map(lambda x: x.reshape((jax.local_device_count(), -1) + x.shape[1:]), xs)
def replicate(tree):
    return jax.tree.map(lambda x: jnp.stack([x] * jax.local_device_count()), tree)
p_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
p_eval = jax.pmap(lambda w, x, rng: (x * w + jax.random.normal(rng, x.shape)).sum())
state = replicate({"w": W[0], "n": jnp.zeros((), jnp.int32)})
rng = jax.random.PRNGKey(0)
history = []
for step in range(3):
    state, metrics = p_step(state, shard(np.tile(ROWS, (2, 1)))["x"] if 0 else ROWS)
    rng, *keys = jax.random.split(rng, jax.local_device_count() + 1)
    history.append(p_eval(state["w"], shard(np.tile(ROWS, (2, 1))), jnp.stack(keys)))
    history.append(jax.device_get(metrics))
checkpoint = jax.device_get(jax.tree.map(lambda x: x[0], state))
restored = replicate(checkpoint)
RESULT = history, checkpoint, p_step(restored, ROWS)
""",
}
# JAX 0.8 and 0.9 cannot compile an axis_index in an inner map.
SINCE_0_10 = {"nested_index"}
# Maps that are written out where they stand if the program counts its devices.
COUNTED = "N = jax.local_device_count()\n"
WRITTEN_OUT = (
    "a_name", "donated", "no_axis_name", "positional_axis_name", "named_axis", "in_axes",
    "in_axes_None", "in_axes_list", "out_axes", "scalars_returned", "devices", "backend",
    "decorator", "partial_called", "of_a_partial", "method", "under_grad_and_jit", "keys",
    "lowered", "comments_inside", "replicated_and_sharded", "collectives", "rows_to_the_host",
    "pipeline", "shards_that_are_placed", "vmapped_lambda", "vmapped_function",
    "first_result_in_parentheses", "static_arguments_first_and_last", "computed_axes",
    "called_lambda", "function_of_each_iteration", "function_that_is_bound_again",
    "attribute_that_is_bound_again", "axis_size_without_arguments",
    "function_that_is_made_again",
    "none_in_some_calls", "devices_of_the_caller", "lambdas_with_defaults",
)  # fmt: skip
