"""Custom pytrees as arguments and results: classes that look at their children (A, E, G)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pmapx
from oracle import assert_same

N = jax.device_count()
ROWS = np.arange(4.0 * N, dtype=np.float32).reshape(N, 4)


@jax.tree_util.register_pytree_with_keys_class
class Gaussian:
    """Converts its children, and refuses those that are no arrays."""

    made = 0

    def __init__(self, loc, scale):
        type(self).made += 1
        for child in (loc, scale):
            if not isinstance(child, jax.Array | np.ndarray | float):
                raise TypeError(f"no array: {child!r}")
        self.loc, self.scale = jnp.asarray(loc), jnp.asarray(scale)
        self.batch_shape = jnp.broadcast_shapes(self.loc.shape, self.scale.shape)

    def log_density(self, x):
        return -((x + 1 - self.loc) * self.scale)  # Exact, in whole numbers.

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("loc"), self.loc), (key("scale"), self.scale)), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Box:
    """Keeps an int as metadata, and anything else as a child."""

    def __init__(self, content):
        self.content = content

    def tree_flatten(self):
        if type(self.content) is int:
            return (), self.content
        return (self.content,), None

    @classmethod
    def tree_unflatten(cls, number, children):
        return cls(*children) if number is None else cls(number)


@jax.tree_util.register_pytree_node_class
class Ragged:
    """Has as many leaves as the rank of its child tells it: its flattening depends on that."""

    def __init__(self, content, note=None):
        self.content, self.note = content, note

    def tree_flatten(self):
        if getattr(self.content, "ndim", None) == 1:
            return (self.content,), "vector"
        return (self.content, self.content), "other"

    @classmethod
    def tree_unflatten(cls, note, children):
        return cls(children[0], note)


def gaussian():
    return Gaussian(ROWS, 1 + ROWS)


def density(dist, x):
    return dist.log_density(x)


EXPECTED = gaussian().log_density(ROWS)


@pytest.mark.behaviour("I1")
def test_a_class_that_refuses_stand_ins_is_an_argument_and_is_cached():
    # A function of its own: maps of one function share programs, also between tests.
    mapped = pmapx.pmap(lambda dist, x: dist.log_density(x))

    for _ in range(3):
        assert_same(mapped(gaussian(), ROWS), EXPECTED)

    assert mapped.cache_info().compiles == mapped.cache_info().traces == 1


def test_the_function_gets_the_object_of_the_class_for_one_device():
    seen = []

    def body(dist, *, other):
        seen.append((type(dist), dist.batch_shape, type(other), other.content.shape))
        return dist.loc

    pmapx.pmap(body)(gaussian(), other=Box(ROWS))

    assert seen == [(Gaussian, (4,), Box, (4,))]


def test_a_call_rebuilds_the_argument_no_more_often_than_jit_does():
    argument = gaussian()
    jax.jit(density)(argument, ROWS)
    before = Gaussian.made
    jax.jit(lambda dist, x: density(dist, x))(argument, ROWS)
    by_jit = Gaussian.made - before
    before = Gaussian.made

    pmapx.pmap(density)(argument, ROWS)

    assert Gaussian.made - before <= by_jit


@pytest.mark.parametrize("content", [3, ROWS], ids=["metadata", "array"])
def test_a_box_that_keeps_ints_as_metadata_is_an_argument(content):
    mapped = pmapx.pmap(lambda box, x: x * box.content)

    assert_same(mapped(Box(content), ROWS), jnp.asarray(ROWS * content))


def test_a_flattening_that_depends_on_the_rank_of_the_child_is_read_off_the_arguments():
    # Two leaves outside, where the child has rank 2, whatever the rank inside.
    mapped = pmapx.pmap(lambda ragged, x: (ragged.content + x, ragged.note))

    with pytest.raises(pmapx.errors.OutputNotAnArray):
        mapped(Ragged(ROWS), ROWS)
    mapped = pmapx.pmap(lambda ragged, x: ragged.content + x)
    assert_same(mapped(Ragged(ROWS), ROWS), jnp.asarray(2 * ROWS))
    assert_same(jax.jit(mapped)(Ragged(ROWS), ROWS), jnp.asarray(2 * ROWS))


@pytest.mark.parametrize("in_axes", [0, (0, 0), ({"dist": 0, "box": None}, 0)])
def test_in_axes_are_prefixes_of_custom_pytrees(in_axes):
    box = 2.0 * ROWS[0] if type(in_axes) is tuple and in_axes[0] else 2.0 * ROWS

    def body(tree, x):
        return tree["dist"].log_density(x) + tree["box"].content

    mapped = pmapx.pmap(body, in_axes=in_axes)

    assert_same(mapped({"dist": gaussian(), "box": Box(box)}, ROWS), EXPECTED + box)


def test_in_axes_may_be_an_object_of_the_class():
    mapped = pmapx.pmap(lambda box, x: box.content["a"] + box.content["b"] + x,
                        in_axes=(Box({"a": 0, "b": None}), 0))  # fmt: skip

    result = mapped(Box({"a": ROWS, "b": ROWS[0]}), ROWS)

    assert_same(result, jnp.asarray(2 * ROWS + ROWS[0]))


def test_in_axes_that_are_no_prefix_of_a_custom_pytree_are_refused_with_its_type():
    with pytest.raises(pmapx.errors.InAxesNotPrefix, match=r"list there.* Gaussian"):
        pmapx.pmap(density, in_axes=([0, 0], 0))(gaussian(), ROWS)


def test_results_are_objects_of_the_class():
    mapped = pmapx.pmap(lambda x: (Gaussian(x, x + 1), Box(3), Box(x)))

    for _ in range(2):
        dist, three, box = mapped(ROWS)
        assert_same(dist.scale, jnp.asarray(ROWS + 1))
        assert three.content == 3
        assert_same(box.content, jnp.asarray(ROWS))


@pytest.mark.parametrize("out_axes", [1, None, {"dist": 1, "sum": None}])
def test_out_axes_are_prefixes_of_custom_pytrees(out_axes):
    def body(x):
        whole = lax.all_gather(x, "i")
        return {"dist": Gaussian(whole, whole + 1), "sum": Box(lax.psum(x, "i"))}

    result = pmapx.pmap(body, "i", out_axes=out_axes)(ROWS)

    expected = jax.vmap(body, axis_name="i", out_axes=out_axes)(ROWS)
    assert_same(jax.tree.leaves(result), jax.tree.leaves(expected))


def test_auto_out_axes_with_results_of_the_class():
    mapped = pmapx.pmap(lambda x: Gaussian(x, lax.pmax(x, "i") + 1), "i", out_axes=pmapx.AUTO)

    dist = mapped(ROWS)

    assert (dist.loc.shape, dist.scale.shape) == ((N, 4), (4,))


def test_an_output_that_varies_is_reported_for_a_class_that_refuses_stand_ins():
    mapped = pmapx.pmap(lambda x: Gaussian(x, x + 1), out_axes=None)

    if N == 1:
        return
    with pytest.warns(pmapx.errors.VaryingOutput, match="output"):
        mapped(ROWS)


def test_lower_compile_and_call():
    lowered = pmapx.pmap(density).lower(gaussian(), ROWS)
    compiled = lowered.compile()

    for _ in range(2):
        assert_same(compiled(gaussian(), ROWS), EXPECTED)
    for stage in (lowered, compiled):
        assert stage.in_tree == jax.tree.structure(((gaussian(), ROWS), {}))
    with pytest.raises(TypeError, match="compiled with input pytree does not match"):
        compiled(Box(ROWS), ROWS)


def test_names_in_the_program_are_those_of_the_users_tree():
    text = pmapx.pmap(density).lower(gaussian(), ROWS).as_text(debug_info=True)

    assert "dist.loc" in text
    assert "dist.scale" in text


def test_args_info_of_a_class_that_takes_any_child():
    (box, _), _ = pmapx.pmap(lambda box, x: x).lower(Box(ROWS), ROWS).args_info

    assert (box.content.shape, box.content.donated) == ((N, 4), False)


def test_trace_and_eval_shape():
    mapped = pmapx.pmap(density)

    assert mapped.eval_shape(gaussian(), ROWS).shape == (N, 4)
    traced = mapped.trace(gaussian(), ROWS)
    assert traced.in_tree == jax.tree.structure(((gaussian(), ROWS), {}))
    assert_same(traced.lower().compile()(gaussian(), ROWS), EXPECTED)
    assert jax.eval_shape(mapped, gaussian(), ROWS).shape == (N, 4)


def test_under_jit_grad_and_vmap():
    mapped = pmapx.pmap(density)

    assert_same(jax.jit(mapped)(gaussian(), ROWS), EXPECTED)
    found = jax.grad(lambda dist: mapped(dist, ROWS).sum())(gaussian())
    expected = jax.grad(lambda dist: density(dist, ROWS).sum())(gaussian())
    np.testing.assert_allclose(found.loc, expected.loc, rtol=1e-6)
    batched = jax.vmap(lambda x: mapped(gaussian(), x))(np.stack([ROWS, ROWS]))
    assert_same(batched[1], EXPECTED)


def test_under_disable_jit_and_debug_nans():
    mapped = pmapx.pmap(density)

    with jax.disable_jit():
        assert_same(mapped(gaussian(), ROWS), EXPECTED)
    with jax.debug_nans(True):
        assert_same(mapped(gaussian(), ROWS), EXPECTED)


@pytest.mark.needs_devices(4)
def test_a_pmap_of_a_pmap_and_a_pmap_inside_a_pmap():
    rows = ROWS[:4].reshape(2, 2, 4)
    expected = Gaussian(rows, rows + 1).log_density(rows)
    inner = pmapx.pmap(density, "j")

    def outer(dist, x):
        return inner(Gaussian(dist.loc, dist.scale), x)

    assert_same(pmapx.pmap(inner, "i")(Gaussian(rows, rows + 1), rows), expected)
    assert_same(pmapx.pmap(outer, "i")(Gaussian(rows, rows + 1), rows), expected)


def test_static_arguments_beside_custom_pytrees():
    @functools.partial(pmapx.pmap, static_broadcasted_argnums=(0, 2))
    def mapped(sign, dist, power, *, x):
        return sign * dist.log_density(x) ** power

    for sign in (1, -1, 1):
        assert_same(mapped(sign, gaussian(), 2, x=ROWS), sign * EXPECTED**2)


def test_a_donated_custom_pytree_is_deleted():
    dist = pmapx.replicate(Gaussian(ROWS[0], ROWS[0] + 1))
    mapped = pmapx.pmap(lambda dist: Gaussian(dist.loc + 1, dist.scale + 1), donate_argnums=0)

    result = mapped(dist)

    assert dist.loc.is_deleted()
    assert_same(result.loc[0], jnp.asarray(ROWS[0] + 1))


def test_committed_leaves_are_moved_and_named_by_their_path():
    dist = Gaussian(jax.device_put(ROWS, jax.devices()[0]), 1 + ROWS)
    mapped = pmapx.pmap(density)

    for _ in range(2):
        assert_same(mapped(dist, ROWS), EXPECTED)

    if N > 1:
        (move,) = mapped.cache_info().moved
        assert (move.argument, move.count) == ("argument 0 'dist' at .loc", 2)


def test_errors_name_the_leaf_of_a_custom_pytree():
    with pytest.raises(pmapx.errors.ScalarMapped, match=r"argument 0 'dist' at \.scale"):
        pmapx.pmap(density)(Gaussian(ROWS, 1.0), ROWS)
    with pytest.raises(pmapx.errors.NotAnArray, match=r"argument 0 'box' at \[<flat index 0>\]"):
        pmapx.pmap(lambda box: box.content)(Box("text"))


def test_helpers_take_custom_pytrees():
    dist = Gaussian(ROWS[0], ROWS[0] + 1)

    replicated = pmapx.replicate(dist)
    assert replicated.loc.shape == (N, 4)
    assert_same(pmapx.unreplicate(replicated).scale, jnp.asarray(ROWS[0] + 1))
    put = pmapx.device_put_replicated(dist, jax.devices())
    assert_same(pmapx.pmap(density)(put, ROWS), density(dist, ROWS))
    sharded = pmapx.shard_batch(Gaussian(np.repeat(ROWS, 2, 0), 1 + np.repeat(ROWS, 2, 0)))
    assert sharded.loc.shape == (N, 2, 4)


class Point(NamedTuple):
    """Takes any children."""

    x: Any
    y: Any


class Unit(Point):
    """Checks its children when it is made."""

    def __new__(cls, x, y):
        if not (hasattr(x, "ndim") and hasattr(y, "ndim")):
            raise TypeError(f"no arrays: {x}, {y}")
        return super().__new__(cls, x, y)


def test_a_named_tuple_that_checks_its_children_is_an_argument():
    mapped = pmapx.pmap(lambda point: point.x + point.y)

    assert_same(mapped(Unit(ROWS, ROWS)), jnp.asarray(2 * ROWS))
    assert_same(mapped.lower(Unit(ROWS, ROWS)).compile()(Unit(ROWS, ROWS)), jnp.asarray(2 * ROWS))


def test_a_named_tuple_keeps_its_names_in_the_program():
    text = (
        pmapx.pmap(lambda point: point.x + point.y)
        .lower(Point(ROWS, ROWS))
        .as_text(debug_info=True)
    )

    assert "point.x" in text
