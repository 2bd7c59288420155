"""What the replication analysis proves, rule by rule, and that no run refutes it."""

import doctest
import functools
import inspect
import os

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from pmapx._src.replication import shard_map_body
from property_tests import property_test

pytestmark = pytest.mark.behaviour("A5")

# Tracing needs no devices: only the test that runs programs asks for them.
MESH = AbstractMesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
BOTH = ("i", "j")


def outputs(body, *args, **options):
    """The variation of each output of `body(x, r)`: x varies over i and j, r is replicated."""
    options = {"mesh": MESH, "in_specs": (P(BOTH), P()), "out_specs": P(), **options}
    f = jax.jit(jax.shard_map(body, check_vma=False, **options))
    return shard_map_body.shard_map_outputs(jax.make_jaxpr(f)(*(args or (np.ones(32), np.ones(4)))))


def body_jaxpr(body, in_specs, *args):
    options = {"mesh": MESH, "out_specs": P(), "check_vma": False}
    closed = jax.make_jaxpr(jax.shard_map(body, in_specs=in_specs, **options))(*args)
    return closed.jaxpr.eqns[-1].params["jaxpr"]


def line_of(function, text):
    """The one line of `function` that holds `text`, as the analysis would write it."""
    lines, start = inspect.getsourcelines(function)
    [offset] = [k for k, line in enumerate(lines) if text in line]
    return f"{os.path.basename(__file__)}:{start + offset}"


def unknown_primitive(*operands, name="a_primitive_of_a_library", **params):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda first, *rest, **params: first)
    return primitive.bind(*operands, **params)


@jax.custom_vjp
def psum_with_its_own_gradient(x):
    return lax.psum(x, "i")


psum_with_its_own_gradient.defvjp(lambda x: (x, None), lambda _, g: (g,))

VARIES_OVER = {
    "an argument varies over the axes of its spec": (BOTH, lambda x, r: x),
    "an argument whose spec names no axis is replicated": ("", lambda x, r: r),
    "a literal is replicated": ("", lambda x, r: 3.0),
    "what depends on replicated values only is replicated": ("", lambda x, r: jnp.sin(r) * r + 2),
    "what depends on a varying value varies": (BOTH, lambda x, r: x + r),
    "psum takes its axis away": ("j", lambda x, r: lax.psum(x, "i")),
    "psum over two axes takes both away": ("", lambda x, r: lax.psum(x, BOTH)),
    "psum over a dimension does not communicate": (
        BOTH,
        lambda x, r: jax.vmap(lambda a: lax.psum(a, "v"), axis_name="v")(x),
    ),
    "psum over a dimension and an axis takes the axis away": (
        "j",
        lambda x, r: jax.vmap(lambda a: lax.psum(a, ("v", "i")), axis_name="v")(x),
    ),
    "psum in groups varies": (
        BOTH,
        lambda x, r: lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]),
    ),
    "psum in groups makes a replicated value vary": (
        "i",
        lambda x, r: lax.psum(r, "i", axis_index_groups=[[0], [1, 2, 3]]),
    ),
    "psum in one group of all takes its axis away": (
        "j",
        lambda x, r: lax.psum(x, "i", axis_index_groups=[[0, 1, 2, 3]]),
    ),
    "pmean takes its axis away": ("j", lambda x, r: lax.pmean(x, "i")),
    "pmax takes its axis away": ("i", lambda x, r: lax.pmax(x, "j")),
    "pmin takes its axis away": ("j", lambda x, r: lax.pmin(x, "i")),
    "all_gather takes its axis away": ("j", lambda x, r: lax.all_gather(x, "i")),
    "all_gather over two axes takes both away": ("", lambda x, r: lax.all_gather(x, BOTH)),
    "all_gather in groups varies": (
        BOTH,
        lambda x, r: lax.all_gather(x, "i", axis_index_groups=[[0, 1], [2, 3]]),
    ),
    "axis_index varies over its axis": ("i", lambda x, r: lax.axis_index("i")),
    "axis_index of two axes varies over both": (BOTH, lambda x, r: lax.axis_index(BOTH)),
    "ppermute varies even if its operand does not": (
        "i",
        lambda x, r: lax.ppermute(r, "i", [(0, 1)]),
    ),
    "ppermute keeps the other axes": (
        BOTH,
        lambda x, r: lax.ppermute(lax.psum(x, "i"), "i", [(0, 1)]),
    ),
    "pshuffle varies": ("i", lambda x, r: lax.pshuffle(r, "i", [1, 0, 3, 2])),
    "all_to_all varies": ("i", lambda x, r: lax.all_to_all(r, "i", 0, 0)),
    "psum_scatter varies": ("i", lambda x, r: lax.psum_scatter(r, "i")),
    "a primitive that JAX does not define varies over all": (
        BOTH,
        lambda x, r: unknown_primitive(r, lax.psum(x, "i"), axes=(0,)),
    ),
    "a primitive that has the name of one of JAX's varies over all": (
        BOTH,
        lambda x, r: unknown_primitive(r, name="sin"),
    ),
    "a primitive that has the name of a collective varies over all": (
        BOTH,
        lambda x, r: unknown_primitive(r, name="psum", axes=("i",)),
    ),
    "checkpoint_name keeps the value": ("", lambda x, r: checkpoint_name(jnp.sin(r), "sine")),
    "an unknown primitive that names an axis varies over all": (
        BOTH,
        lambda x, r: unknown_primitive(r, axis_name=("i",)),
    ),
    "an unknown primitive that holds a jaxpr varies over all": (
        BOTH,
        lambda x, r: unknown_primitive(r, bodies=(jax.make_jaxpr(jnp.sin)(r),)),
    ),
    "pure_callback varies over all": (BOTH, lambda x, r: jax.pure_callback(np.sin, r, r)),
    "io_callback varies over all": (BOTH, lambda x, r: io_callback(np.sin, r, r)),
    "ffi_call varies over all": (BOTH, lambda x, r: jax.ffi.ffi_call("no_such_target", r)(r)),
    "uninitialised memory varies over all": (BOTH, lambda x, r: lax.empty((4,), np.float32)),
    "a mutable array varies over all": (BOTH, lambda x, r: jax.new_ref(r)[...]),
    "rng_uniform varies over all": (BOTH, lambda x, r: lax.rng_uniform(0.0, 1.0, (4,))),
    "rng_bit_generator is a function of its state": (
        "",
        lambda x, r: lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (2,))[1],
    ),
    "random numbers are a function of their key": (
        "",
        lambda x, r: jax.random.normal(jax.random.split(jax.random.key(0))[1]),
    ),
    "random numbers from a key of the device's own vary": (
        "i",
        lambda x, r: jax.random.bits(jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))),
    ),
    "jit is looked into": ("j", lambda x, r: jax.jit(lambda a: lax.psum(a, "i"))(x)),
    "checkpoint is looked into": (
        "j",
        lambda x, r: jax.checkpoint(lambda a: lax.psum(jnp.sin(a), "i"))(x),
    ),
    "the gradient of a checkpoint is looked into": (
        "",
        lambda x, r: jax.grad(jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)).sum()))(r),
    ),
    "custom_jvp is looked into": ("", lambda x, r: jax.nn.relu(lax.psum(x, BOTH))),
    "custom_vjp is looked into": ("j", lambda x, r: psum_with_its_own_gradient(x)),
    "optimization_barrier mixes nothing": (
        "j",
        lambda x, r: lax.optimization_barrier((x, lax.psum(x, "i")))[1],
    ),
    "a scatter is a function of its operands": ("", lambda x, r: r.at[0].add(r[1])),
    "a scatter of varying updates varies": ("j", lambda x, r: r.at[0].add(lax.psum(x, "i")[1])),
    "a reduction by a function is a function of its operands": (
        "",
        lambda x, r: lax.reduce(r, np.float64(0), lambda a, b: a + b * 2, (0,)),
    ),
    "a linear solve of replicated values is replicated": (
        "",
        lambda x, r: jnp.linalg.solve(jnp.eye(4) * 2, r),
    ),
    "a linear solve with psum inside is replicated": (
        "",
        lambda x, r: lax.custom_linear_solve(
            lambda v: lax.psum(v, "i"), r, lambda matvec, b: matvec(b), symmetric=True
        ),
    ),
    "a linear solve with axis_index inside varies": (
        "j",
        lambda x, r: lax.custom_linear_solve(
            lambda v: v * lax.axis_index("j"), r, lambda matvec, b: matvec(b), symmetric=True
        ),
    ),
    "a carry that meets a varying value varies": (
        "j",
        lambda x, r: lax.scan(lambda c, _: (c + lax.psum(x, "i"), None), r, None, length=3)[0],
    ),
    "a carry that meets varying values in turn varies over all of them": (
        BOTH,
        lambda x, r: lax.scan(
            lambda c, _: ((c[1], c[2] + lax.axis_index("j"), c[0] + lax.axis_index("i")), None),
            (r, r, r),
            None,
            length=5,
        )[0][0],
    ),
    "a carry that each step makes equal is replicated": (
        "",
        lambda x, r: lax.scan(lambda c, _: (lax.pmean(c, BOTH), None), x, None, length=3)[0],
    ),
    "a carry that no step makes equal varies": (
        BOTH,
        lambda x, r: lax.scan(lambda c, _: (lax.pmean(c, BOTH), None), x, None, length=0)[0],
    ),
    "what is scanned over varies as it did": ("", lambda x, r: lax.scan(step_sum, r[0], r)[0]),
    "what a scan over varying values stacks varies": (
        "j",
        lambda x, r: lax.scan(step_sum, r[0], lax.psum(x, "i"))[1],
    ),
    "what a scan stacks before it carries a varying value varies": (
        BOTH,
        lambda x, r: lax.scan(lambda c, _: (x[0], c), r[0], None, length=3)[1],
    ),
    "a loop of replicated trips on replicated values is replicated": (
        "",
        lambda x, r: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, r),
    ),
    "a loop with a varying number of trips varies": (
        "j",
        lambda x, r: lax.while_loop(
            lambda c: c[0] < lax.axis_index("j"), lambda c: (c[0] + 1, c[1] * 2), (0, r)
        )[1],
    ),
    "a loop that may not run keeps the variation it began with": (
        BOTH,
        lambda x, r: lax.while_loop(lambda c: r[0] < 0, lambda c: lax.psum(c, BOTH), x),
    ),
    "a replicated choice between replicated values is replicated": (
        "",
        lambda x, r: lax.cond(r[0] > 0, jnp.sin, jnp.cos, r),
    ),
    "a varying choice between replicated values varies": (
        "j",
        lambda x, r: lax.switch(lax.axis_index("j"), [jnp.sin, jnp.cos], r),
    ),
    "a choice varies as any of its branches does": (
        "i",
        lambda x, r: lax.cond(r[0] > 0, lambda a: a, lambda a: a + lax.axis_index("i"), r),
    ),
}


def step_sum(carry, x):
    return carry + x, carry * x


@pytest.mark.parametrize("claim", VARIES_OVER)
def test_rule(claim):
    expected, body = VARIES_OVER[claim]
    [output] = outputs(body)
    assert output.axes == frozenset(expected)
    assert output.is_replicated == (not expected)
    assert (output.since is None) == (not expected)


def test_a_warning_takes_a_primitive_of_a_library_for_a_function_of_its_operands():
    def body(x, r):
        return unknown_primitive(r), unknown_primitive(x), jax.pure_callback(np.sin, r, r)

    f = jax.shard_map(body, mesh=MESH, in_specs=(P(BOTH), P()), out_specs=P(), check_vma=False)
    closed = jax.make_jaxpr(f)(np.ones(32), np.ones(4))
    found = shard_map_body.shard_map_outputs(closed, trust_unknown=True)
    assert [v.axes for v in found] == [frozenset(), set(BOTH), set(BOTH)]
    assert [v.axes for v in shard_map_body.shard_map_outputs(closed)] == [set(BOTH)] * 3


@pytest.mark.skipif(not hasattr(lax, "pcast"), reason="this JAX has no lax.pcast")
def test_pcast_keeps_the_value():
    def body(x, r):
        return lax.pcast(lax.psum(x, "i"), "i", to="varying")

    f = jax.shard_map(body, mesh=MESH, in_specs=(P(BOTH), P()), out_specs=P(BOTH))
    [output] = shard_map_body.shard_map_outputs(jax.make_jaxpr(f)(np.ones(32), np.ones(4)))
    assert output.axes == {"j"}


def test_operands_of_one_collective_are_kept_apart():
    def body(x, r):
        return lax.psum((x, r), "i")

    assert [v.axes for v in outputs(body)] == [{"j"}, frozenset()]


def test_nested_shard_map_adds_and_removes_its_own_axes():
    def outer(x):
        inner_outputs = {
            "joined": (lambda y: y, P("j")),
            "not joined": (lambda y: y, P()),
            "summed": (lambda y: lax.psum(y, "j"), P()),
            "summed over both": (lambda y: lax.psum(y, BOTH), P()),
            "index of the outer axis": (lambda y: lax.axis_index("i"), P()),
            "joined index": (lambda y: lax.axis_index("j")[None], P("j")),
            "callback joined": (lambda y: jax.pure_callback(np.sin, y, y), P("j")),
        }
        functions, out_specs = zip(*inner_outputs.values(), strict=True)
        return jax.shard_map(
            lambda y: tuple(f(y) for f in functions),
            in_specs=P("j"),
            out_specs=out_specs,
            axis_names={"j"},
            check_vma=False,
        )(x)

    found = outputs(outer, np.ones(32), in_specs=P("i"), axis_names={"i"})
    expected = ["i", "ij", "i", "", "i", "", "i"]
    assert [v.axes for v in found] == [frozenset(e) for e in expected]
    assert found[1].since == "argument 0"


def test_axis_names_are_compared_by_equality():
    class Token(str):
        """A string that stands for an object, as pmapx makes them for meshes."""

        def __new__(cls, name):
            token = super().__new__(cls, str(name))
            token.name = name
            return token

        def __eq__(self, other):
            return self.name == (other.name if isinstance(other, Token) else other)

        def __ne__(self, other):
            return not self == other

        def __hash__(self):
            return hash(self.name)

    name = (("rows", 1), ("columns", 2))  # one axis whose name is a tuple
    mesh = AbstractMesh((4, 2), (Token(name), "j"), axis_types=(AxisType.Auto,) * 2)

    def body(x, r):
        return x, lax.psum(x, Token(name)), lax.axis_index(Token(name)) * r

    found = outputs(body, mesh=mesh, in_specs=(P((Token(name), "j")), P()))
    assert [v.axes for v in found] == [{name, "j"}, {"j"}, {name}]
    bare = shard_map_body.jaxprs.axis_names(name, mesh.axis_names)
    assert bare == (name,)


def test_since_names_the_line_that_made_it_vary():
    def body(x, r):
        index = lax.axis_index("j")
        return jnp.sin(r * index) + 1

    [output] = outputs(body)
    assert output.since == f"`axis_index` at {line_of(body, 'index = ')}"


def test_since_names_the_argument_of_the_function_that_varies():
    constant = jnp.arange(3.0)  # becomes the first operand of the shard_map

    def body(x, r, y):
        return r + y * constant.sum()

    f = jax.shard_map(body, mesh=MESH, in_specs=(P(), P(), P("i")), out_specs=P(), check_vma=False)
    closed = jax.make_jaxpr(jax.jit(lambda x, r, y: jax.jit(f)(x, r, 2 * y)))(
        np.ones(4), np.ones(4), np.ones(16)
    )
    [output] = shard_map_body.shard_map_outputs(closed)
    assert output == shard_map_body.Variation(frozenset({"i"}), "argument 2")


def test_since_says_input_when_no_argument_is_behind_it():
    f = jax.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    closed = jax.make_jaxpr(jax.jit(lambda: f(jnp.arange(4))))()
    [output] = shard_map_body.shard_map_outputs(closed)
    assert output.since == "input 0 of the shard_map"


def test_since_forgets_what_was_made_equal():
    def body(x, r):
        return lax.psum(x, BOTH) + lax.axis_index("i")

    [output] = outputs(body)
    assert output.since.startswith("`axis_index`")


@pytest.mark.parametrize("count", [0, 2])
def test_other_than_one_shard_map_is_not_answered(count):
    f = jax.shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)

    def repeated(x):
        for _ in range(count):
            x = jax.jit(f)(x)
        return x

    assert shard_map_body.shard_map_outputs(jax.make_jaxpr(jax.jit(repeated))(np.ones(8))) is None


def test_body_reads_the_mesh_from_its_types():
    jaxpr = body_jaxpr(lambda r: jax.pure_callback(np.sin, r, r), P(), np.ones(4))
    [output] = shard_map_body.analyze_body(jaxpr, [frozenset()])
    assert output.axes == set(BOTH)


def test_body_without_types_is_not_proven_replicated():
    jaxpr = jax.make_jaxpr(lambda r: jax.pure_callback(np.sin, r, r))(np.ones(4)).jaxpr
    [output] = shard_map_body.analyze_body(jaxpr, [frozenset()])
    assert not output.is_replicated


def training_step(state, images, labels, *, mean, dropout_key):
    """A data-parallel step in the usual shape: batch statistics, dropout, momentum, EMA."""

    def loss_of(params):
        hidden = jnp.tanh(images @ params["in"])
        batch_mean = hidden.mean(0)
        keep = jax.random.bernoulli(dropout_key(), 0.9, hidden.shape)
        logits = (hidden - batch_mean) * keep @ params["out"]
        return ((logits - labels) ** 2).mean(), batch_mean

    (loss, batch_mean), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
    grads = mean(grads)
    tree = jax.tree.map
    momentum = tree(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = tree(lambda p, m: p - 0.1 * m, state["params"], momentum)
    ema = tree(lambda e, p: 0.99 * e + 0.01 * p, state["ema"], params)
    stats = 0.9 * state["stats"] + 0.1 * lax.pmean(batch_mean, "i")
    return {"params": params, "momentum": momentum, "ema": ema, "stats": stats}, loss


WEIGHTS = {"in": np.ones((5, 3), np.float32), "out": np.ones((3, 2), np.float32)}
STATE = {"ema": WEIGHTS, "momentum": WEIGHTS, "params": WEIGHTS, "stats": np.ones(3, np.float32)}
BATCH = np.ones((8, 5), np.float32), np.ones((8, 2), np.float32)
MEAN = functools.partial(lax.pmean, axis_name="i")


def own_key():
    return jax.random.fold_in(jax.random.key(0), lax.axis_index("i"))


def shared_key():
    return jax.random.key(0)


def step_outputs(step, batch_spec):
    def in_order(*args):
        state, loss = step(*args)
        return *(jax.tree.leaves(state[name]) for name in sorted(state)), loss

    in_specs = P(), batch_spec, batch_spec
    *state, loss = outputs(in_order, STATE, *BATCH, in_specs=in_specs)
    return state, loss


def test_training_step_with_pmean_keeps_its_state_replicated():
    step = functools.partial(training_step, mean=MEAN, dropout_key=own_key)
    state, loss = step_outputs(step, P("i"))
    assert len(state) == 7
    assert all(leaf.is_replicated for leaf in state)
    assert loss.since == "argument 7"  # the images, after the seven arrays of the state


def test_training_step_without_pmean_varies_since_its_batch():
    step = functools.partial(training_step, mean=lambda grads: grads, dropout_key=shared_key)
    state, _ = step_outputs(step, P("i"))
    *weights, stats = state
    assert {(*leaf.axes, leaf.since) for leaf in weights} == {("i", "argument 7")}
    assert stats.is_replicated


def test_training_step_on_equal_batches_varies_since_the_key_of_its_own():
    step = functools.partial(training_step, mean=lambda grads: grads, dropout_key=own_key)
    state, _ = step_outputs(step, P())
    *weights, _ = state
    since = f"`axis_index` at {line_of(own_key, 'axis_index')}"
    assert {leaf.since for leaf in weights} == {since}


@pytest.mark.parametrize("mean", [MEAN, lambda grads: grads])
def test_stacked_training_state_is_checked_by_declaring_it_replicated(mean):
    step = functools.partial(training_step, mean=mean, dropout_key=own_key)
    jaxpr = body_jaxpr(
        lambda state, *batch: step(jax.tree.map(lambda leaf: leaf[0], state), *batch),
        P("i"),
        jax.tree.map(lambda leaf: np.stack([leaf] * 4), STATE),
        *BATCH,
    )
    assumed = [frozenset()] * 7 + [frozenset({"i"})] * 2
    state = shard_map_body.analyze_body(jaxpr, assumed)[:7]
    assert all(leaf.is_replicated for leaf in state) == (mean is MEAN)


def test_training_loop_inside_the_body_keeps_its_state_replicated():
    def loop(state, images, labels):
        def body(state, _):
            return training_step(state, images, labels, mean=MEAN, dropout_key=own_key)

        return lax.scan(body, state, None, length=3)

    state, _ = step_outputs(loop, P("i"))
    assert all(leaf.is_replicated for leaf in state)


def test_examples_in_the_docstrings_run():
    assert doctest.testmod(shard_map_body).failed == 0


# Random programs. A program is a list of instructions on a growing list of values of one shape; an
# operand is any number, taken modulo the length of the list.

# How many shards, laid out how; mostly replicated, so that there is much to be claimed.
INPUTS = [(1, P()), (1, P()), (8, P(BOTH)), (1, P()), (4, P("i")), (2, P("j")), (1, P())]
GROUPS = {
    "i": ([[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0, 1, 2, 3]]),
    "j": ([[0, 1]], [[0], [1]]),
}
REDUCTIONS = {"psum": lax.psum, "pmax": lax.pmax, "pmin": lax.pmin, "pmean": lax.pmean}
ARITHMETIC = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "sin": lambda a, b: jnp.sin(3 * a),
    "select": lambda a, b: jnp.where(a > b, a, -b),
    "slice": lambda a, b: lax.dynamic_slice(jnp.concatenate([a, a]), [as_int(b)], (4,)),
    "scatter": lambda a, b: a.at[as_int(b)].add(b[1]),
    "sort": lambda a, b: jnp.sort(jnp.concatenate([a, b]))[2:6],
    "random": lambda a, b: jax.random.uniform(jax.random.fold_in(jax.random.key(0), as_int(a)), 4),
    "log": lambda a, b: jnp.log(a),  # NaN where negative
    "barrier": lambda a, b: lax.optimization_barrier((a, b))[0],
    "constant": lambda a, b: jnp.arange(4.0),
    "update": lambda a, b: lax.dynamic_update_slice(a, b[:2], [as_int(b)]),
    "lookup": lambda a, b: a[jnp.stack([as_int(b), 0, 3, as_int(a)])],
    "order": lambda a, b: jnp.argsort(b).astype(jnp.float32) * a,
    "largest": lambda a, b: lax.top_k(jnp.concatenate([a, b]), 4)[0],
    "running": lambda a, b: lax.associative_scan(jnp.add, a) - lax.cummax(b),
    "raw_key": lambda a, b: jax.random.normal(jax.random.PRNGKey(as_int(b)), 4),
    "split_key": lambda a, b: jax.random.uniform(jax.random.split(own_rng(a), 3)[as_int(b) % 3], 4),
    "bits": lambda a, b: jax.random.bits(own_rng(b), 4, jnp.uint8).astype(jnp.float32) + a,
    "gradient": lambda a, b: jax.grad(lambda v: jnp.sum(jnp.tanh(v) * b))(a),
    "solve": lambda a, b: jnp.linalg.solve(
        jnp.eye(4) + 0.1 * jnp.outer(squashed(a), squashed(a)), b
    ),
}


MEANS = {axes: functools.partial(lax.pmean, axis_name=axes) for axes in (*BOTH, BOTH)}


def as_int(a):
    return (jnp.nan_to_num(a[0]) * 7).astype(jnp.int32) % 4


def own_rng(a):
    return jax.random.key(as_int(a))


def squashed(a):
    return jnp.tanh(jnp.nan_to_num(a))


def is_small(a):
    return jnp.nan_to_num(a).sum() < 0


def agreed(a):
    return lax.pmax(jnp.nan_to_num(a), BOTH)


# The CPU backend of JAX 0.8 aborts the process when it compiles an axis_index in a loop.
QUIET = ["arithmetic"] * 6 + ["index"] * (jax.__version_info__ >= (0, 10))
COLLECTIVES = [
    *("reduce", "reduce", "grouped", "gather", "permute", "shuffle", "sum_scatter", "all_to_all"),
    *("own_key", "through_gradient"),
]
CONTROL = ["jit", "remat", "custom", "vmap", "scan", "while", "cond"]


def instruction(random, kinds, depth):
    """One instruction of one of the kinds; with a depth of 1 or more it may hold programs."""
    kind = random.choice([*kinds, *CONTROL, "while", "cond"] if depth else kinds)
    # Devices that may part ways must not wait for one another after that.
    agree = set(kinds) >= set(COLLECTIVES) and random.random() < 0.4
    size = random.choice([1, 2])
    inner = QUIET if kind in ("while", "cond") and not agree else kinds
    draw = {
        "function": lambda: random.choice(sorted(ARITHMETIC)),
        "reduction": lambda: random.choice(sorted(REDUCTIONS)),
        "axis": lambda: random.choice(BOTH),
        "axes": lambda: random.choice([*BOTH, BOTH]),
        "order": lambda: random.sample(range(4), 4),
        "count": lambda: random.randrange(4),
        "flag": lambda: random.random() < 0.5,
        "agree": lambda: agree,
        "body": lambda: [instruction(random, inner, depth - 1) for _ in range(size)],
        # Half of the time one of the inputs, so that replicated values meet varying choices.
        "value": lambda: random.randrange(random.choice([len(INPUTS), 840])),
    }
    return kind, *(draw[detail]() for detail in DETAILS[kind].split())


DETAILS = {
    "arithmetic": "function value value",
    "index": "axes",
    "reduce": "reduction axes value",
    "grouped": "axis value value flag",
    "gather": "axes value",
    "permute": "axis order count value",
    "sum_scatter": "axis value",
    "all_to_all": "axis value",
    "shuffle": "axis order value",
    "own_key": "axes value",
    "through_gradient": "axes flag value value",
    "custom": "flag body value",
    "vmap": "body value",
    "jit": "body value",
    "remat": "body value",
    "scan": "count body value value",
    "while": "agree body value value",
    "cond": "agree body body value value",
}


@st.composite
def programs(draw):
    # Choices by Hypothesis repeat one another; these are even, at the price of shrinking.
    random = draw(st.randoms(use_true_random=True))
    index = instruction(random, ["index"], depth=0)
    others = range(random.randint(4, 8))
    return [index] + [instruction(random, QUIET + COLLECTIVES, depth=2) for _ in others]


def execute(program, values):
    """Runs the instructions and returns all values, those given first."""
    values = list(values)
    for instruction in program:
        values.append(perform(instruction, values))
    return values


def perform(instruction, values):
    name, *details = instruction
    value = values[details[-1] % len(values)] if isinstance(details[-1], int) else None

    def inner(body):
        return lambda a, *more: execute(body, [*values, *more, a])[-1]

    match name, details:
        case "arithmetic", [function, k, _]:
            return ARITHMETIC[function](values[k % len(values)], value)
        case "index", [over]:
            return lax.axis_index(over) * 0.25 + jnp.arange(4.0)
        case "reduce", [function, over, _]:
            return REDUCTIONS[function](value, over)
        case "grouped", [over, k, l, gathers]:
            groups = GROUPS[over][l % len(GROUPS[over])]
            collective = lax.all_gather if gathers else lax.psum
            result = collective(values[k % len(values)], over, axis_index_groups=groups)
            return result.sum(0) if gathers else result
        case "gather", [over, _]:
            return lax.all_gather(value, over).reshape(-1, 4)[::-1].cumsum(0)[-1]
        case "permute", [over, order, count, _]:
            members = [k for k in order if k < (4 if over == "i" else 2)]
            pairs = list(zip(members, sorted(members), strict=True))[:count]
            return lax.ppermute(value, over, pairs)
        case "sum_scatter", [over, _]:
            return jnp.resize(lax.psum_scatter(value, over, tiled=True), 4)
        case "all_to_all", [over, _]:
            return lax.all_to_all(value, over, 0, 0, tiled=True)
        case "shuffle", [over, order, _]:
            return lax.pshuffle(value, over, [k for k in order if k < (4 if over == "i" else 2)])
        case "own_key", [over, _]:
            keys = jax.random.split(jax.random.key(as_int(value)), 8)
            return jax.random.uniform(keys[lax.axis_index(over)], 4)
        case "through_gradient", [over, gathers, k, _]:
            collective = (lambda v: lax.all_gather(v, over)) if gathers else MEANS[over]
            weighted = lambda v: jnp.sum(collective(v) * values[k % len(values)])
            return jax.grad(weighted)(value)
        case "custom", [is_vjp, body, _]:
            return with_its_own_derivative(inner(body), is_vjp)(value)
        case "vmap", [body, _]:
            return jax.vmap(inner(body))(jnp.stack([value, 2 * value])).sum(0)
        case "jit", [body, _]:
            return jax.jit(inner(body))(value)
        case "remat", [body, _]:
            return jax.checkpoint(inner(body))(value)
        case "scan", [length, body, k, _]:
            xs = jnp.outer(jnp.arange(1.0, length + 1), values[k % len(values)])
            step = lambda c, x: (inner(body)(c, x), c)
            carry, ys = lax.scan(step, value, xs)
            return carry + ys.sum(0)
        case "while", [is_agreed, body, k, _]:
            decide = agreed if is_agreed else jnp.nan_to_num
            return lax.while_loop(
                lambda c: (c[0] < 3) & is_small(c[1]),
                lambda c: (c[0] + 1, c[1] + decide(c[2]), inner(body)(c[2])),
                (0, decide(values[k % len(values)]), value),
            )[2]
        case "cond", [is_agreed, body, other, k, _]:
            decide = agreed if is_agreed else jnp.nan_to_num
            chooser = decide(values[k % len(values)])
            return lax.cond(is_small(chooser), inner(body), inner(other), value)
    raise AssertionError(instruction)


def with_its_own_derivative(f, is_vjp):
    """`f` behind a custom_vjp, of which the forward rule is what runs, or behind a custom_jvp."""
    if not is_vjp:
        custom = jax.custom_jvp(f)
        custom.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
        return custom
    custom = jax.custom_vjp(f)
    custom.defvjp(lambda a: (f(a), a), lambda a, g: (g * a,))
    return lambda a: jax.vjp(custom, a)[0]


def bits(a):
    return np.where(np.isnan(a), np.uint32(0x7FC00000), a.view(np.uint32))


def check_program(program):
    """Runs a program on eight devices and returns how many true claims the analysis made of it."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), BOTH)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, count * 4).astype(np.float32) for count, _ in INPUTS]
    in_specs = tuple(spec for _, spec in INPUTS)

    def body(*inputs):
        return [value[None] for value in execute(program, inputs)[len(INPUTS) :]]

    f = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P(BOTH), check_vma=False)
    )
    traced = f.trace(*inputs)
    variations = shard_map_body.shard_map_outputs(traced.jaxpr)
    run = traced.lower().compile()
    claims = 0
    for variation, output in zip(variations, run(*inputs), strict=True):
        per_device = np.asarray(output).reshape(4, 2, 4)
        for position, name in enumerate(BOTH):
            if name not in variation.axes:
                claims += 1
                found = bits(per_device)
                assert (found == found.take([0], position)).all(), variation
    return claims


@pytest.mark.needs_devices(8)
@property_test(100 / 12, program=programs())
def test_no_run_refutes_a_claim_of_replication(program):
    hypothesis.event(f"claims: {min(check_program(program), 5)}")


def check_nested_program(program):
    """Runs a program inside of a shard_map over j that is inside of one over i."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), BOTH)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, count * 4).astype(np.float32) for count, _ in INPUTS]
    outer_specs = tuple(P("i") if "i" in str(spec) else P() for _, spec in INPUTS)
    inner_specs = tuple(P("j") if "j" in str(spec) else P() for _, spec in INPUTS)

    def body(*inputs):
        return [value[None] for value in execute(program, inputs)[len(INPUTS) :]]

    inner = jax.shard_map(
        body, in_specs=inner_specs, out_specs=P("j"), axis_names={"j"}, check_vma=False
    )
    f = jax.jit(
        jax.shard_map(
            lambda *inputs: [rows[None] for rows in inner(*inputs)],
            mesh=mesh,
            in_specs=outer_specs,
            out_specs=P("i"),
            axis_names={"i"},
            check_vma=False,
        )
    )
    traced = f.trace(*inputs)
    claims = 0
    results = traced.lower().compile()(*inputs)
    for variation, output in zip(
        shard_map_body.shard_map_outputs(traced.jaxpr), results, strict=True
    ):
        if "i" not in variation.axes:
            claims += 1
            found = bits(np.asarray(output).reshape(4, -1))
            assert (found == found[:1]).all(), variation
    return claims


@pytest.mark.needs_devices(8)
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="this JAX cannot nest axis_index")
@property_test(100 / 36, program=programs())
def test_no_run_refutes_a_claim_about_a_nested_shard_map(program):
    hypothesis.event(f"claims: {min(check_nested_program(program), 5)}")
