"""Which outputs vary, in the user's words: the leaf, the axis, the line."""

import inspect
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import pmapx
from varying_outputs import outputs_of

MESH = AbstractMesh((4,), ("i",), axis_types=(AxisType.Auto,))
N = jax.device_count()


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    [offset] = [k for k, line in enumerate(lines) if text in line]
    return f"{os.path.basename(__file__)}:{start + offset}"


def train(state, batch):
    loss, gradients = jax.value_and_grad(lambda w: (batch["image"] @ w).mean())(state["w"])
    statistics = 0.9 * state["stats"] + 0.1 * batch["image"].mean(0)
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")))
    new = {"w": state["w"] - lax.pmean(gradients, "i"), "stats": statistics}
    return new, {"loss": lax.pmean(loss, "i"), "noise": noise}


STATE = {"w": np.ones(3, np.float32), "stats": np.ones(3, np.float32)}
BATCH = {"image": np.ones((4, 3), np.float32)}


def stacked(tree):
    return jax.tree.map(lambda x: np.stack([x] * N), tree)


def traced_by_pmap(**options):
    return pmapx.pmap(train, "i", **options).trace(stacked(STATE), stacked(BATCH))


def test_state_that_starts_equal_is_distinguished_from_what_varies():
    found = outputs_of(traced_by_pmap(), equal=[0], parameters=("state", "batch"))
    assert [(output.path, output.variation.is_replicated) for output in found] == [
        ("[0]['stats']", False),
        ("[0]['w']", True),
        ("[1]['loss']", True),
        ("[1]['noise']", False),
    ]


def test_what_lacks_a_pmean_names_the_argument_and_the_line():
    stats, *_ = outputs_of(traced_by_pmap(), equal=[0], parameters=("state", "batch"))
    assert str(stats) == (
        f"output [0]['stats'] varies over 'i': no pmean before {line_of(train, 'statistics =')} "
        "of what comes from argument 1 'batch' at ['image']"
    )


def test_what_starts_inside_names_its_line():
    *_, noise = outputs_of(traced_by_pmap(), equal=[0])
    line = line_of(train, "noise =")
    assert str(noise) == f"output [1]['noise'] varies over 'i' since `axis_index` at {line}"


def test_what_is_equal_says_so():
    _, weights, *_ = outputs_of(traced_by_pmap(), equal=[0])
    assert str(weights) == "output [0]['w'] is equal on all devices"


def test_without_the_assumption_stacked_state_varies():
    _, weights, *_ = outputs_of(traced_by_pmap())
    assert weights.variation.since == "argument 0 at ['w']"


@pytest.mark.parametrize("out_axes", [0, (0, None), (pmapx.AUTO, {"loss": None, "noise": 0})])
def test_the_order_of_outputs_does_not_depend_on_their_axes(out_axes):
    found = outputs_of(traced_by_pmap(out_axes=out_axes), equal=[0])
    assert [output.variation.is_replicated for output in found] == [False, True, True, False]


SPLIT = P("i")


def shard_mapped(body, in_specs=SPLIT, out_specs=SPLIT):
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def test_a_single_output_and_a_lambda():
    [output] = outputs_of(jax.jit(shard_mapped(lambda x: x)).trace(np.ones(4)))
    assert str(output).startswith("the output varies over 'i'")
    assert "argument 0" in str(output)


def test_several_shard_maps_are_followed_through_what_is_between():
    total = shard_mapped(lambda x: lax.psum(x, "i"), out_specs=P())
    index = shard_mapped(lambda x: x * lax.axis_index("i"))

    @jax.jit
    def both(x):
        return jnp.sin(total(x)), {"index": jax.jit(index)(x) * 2}

    equal, varying = outputs_of(both.trace(np.ones(4)))
    assert equal.variation.is_replicated
    assert varying.path == "[1]['index']"
    assert not varying.variation.is_replicated


def test_replicated_by_its_spec_is_replicated():
    f = shard_mapped(lambda w, x: (w * 2, x), (P(), P("i")), (P(), P("i")))
    weights, x = outputs_of(jax.jit(f).trace(np.ones(3), np.ones(4)))
    assert weights.variation.is_replicated
    assert x.variation.since == "argument 1"


def test_keyword_arguments_are_named():
    traced = pmapx.pmap(lambda *, y: y).trace(y=np.ones((N, 2)))
    [output] = outputs_of(traced)
    assert output.variation.since == "keyword argument 'y'"
