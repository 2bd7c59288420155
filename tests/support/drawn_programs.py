"""Hypothesis strategies: functions, arguments, axes, devices and placements for a pmap.

All numbers are small whole ones, so that sums and products are the same to the bit in any order;
the few operations that are not exact say so.
"""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "i"
DEVICES = jax.devices()


@dataclass(frozen=True)
class Operation:
    """A step of a drawn function: array to array.

    `varies` says whether the result differs between elements: None, as the input does.
    """

    name: str
    apply: Any
    varies: bool | None = None
    is_exact: bool = True
    is_differentiable: bool = True

    def __repr__(self):
        return self.name


def wrap(x):
    return jnp.mod(x, 7)


@jax.custom_vjp
def _triple_gradient(x):
    return 2 * x


_triple_gradient.defvjp(lambda x: (2 * x, None), lambda _, ct: (3 * ct,))


def _rotate(x):
    n = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(k, (k + 1) % n) for k in range(n)])


def _reverse(x):
    return lax.pshuffle(x, AXIS, list(range(lax.axis_size(AXIS)))[::-1])


def _scan(x):
    return lax.scan(lambda c, k: (c + k * x, None), x, jnp.arange(2).astype(x.dtype))[0]


def _branch(x):
    return lax.cond(x.sum() > 0, lambda x: 2 * x, lambda x: -x, x)


LOCAL = [
    Operation("negate", lambda x: -x),
    Operation("add", lambda x: x + 3),
    Operation("square", lambda x: wrap(x) * wrap(x)),
    Operation("relu", lambda x: jnp.maximum(x, 1)),
    Operation("flip", lambda x: x[..., ::-1] if x.ndim else x),
    Operation("cumsum", lambda x: jnp.cumsum(x, -1) if x.ndim else x),
    Operation("total", lambda x: x.sum()),
    Operation("expand", lambda x: x[..., None] if x.ndim < 3 else x),
    Operation("transpose", lambda x: x.T),
    Operation("scan", _scan),
    Operation("branch", _branch),
    Operation("loop", lambda x: lax.fori_loop(0, 2, lambda _, x: x + 1, x)),
    Operation("jit", lambda x: jax.jit(lambda x: 2 * x)(x)),
    Operation("rows", lambda x: jax.vmap(lambda r: 2 * r + 1)(x) if x.ndim else x),
    Operation("remat", jax.checkpoint(lambda x: wrap(x) * 2)),
    Operation("custom gradient", _triple_gradient),
    Operation("tanh", lambda x: jnp.tanh(x / 4), is_exact=False),
]
COLLECTIVE = [
    Operation("psum", lambda x: lax.psum(x, AXIS), varies=False),
    Operation("pmean", lambda x: lax.pmean(x, AXIS), varies=False, is_exact=False),
    Operation("pmax", lambda x: lax.pmax(x, AXIS), varies=False, is_differentiable=False),
    Operation("pmin", lambda x: lax.pmin(x, AXIS), varies=False, is_differentiable=False),
    Operation("all_gather", lambda x: lax.all_gather(x, AXIS).sum(0), varies=False),
    Operation(
        "all_gather tiled",
        lambda x: lax.all_gather(x, AXIS, axis=x.ndim - 1, tiled=True) if x.ndim else x,
    ),
    Operation("rotate", _rotate, varies=True),
    Operation("reverse", _reverse, varies=True),
    Operation("scatter", lambda x: lax.psum_scatter(lax.all_gather(x, AXIS), AXIS), varies=True),
    Operation(
        "exchange",
        # The index makes it vary: vmap's own all_to_all is wrong for what does not.
        lambda x: lax.all_to_all(
            lax.all_gather(x, AXIS) + lax.axis_index(AXIS).astype(x.dtype), AXIS, 0, 0
        ).sum(0),
        varies=True,
        is_differentiable=False,  # nor is its transpose right in vmap
    ),
    Operation("index", lambda x: x * lax.axis_index(AXIS).astype(x.dtype), varies=True),
    Operation("conditional sum", lambda x: x + lax.psum(jnp.where(x > 0, x, 0), AXIS)),
]


@dataclass(frozen=True)
class Leaf:
    """An array argument: the shape of one row, its type, and what it holds."""

    row_shape: tuple[int, ...]
    dtype: str
    seed: int

    def whole(self, size, axis):
        shape = list(self.row_shape)
        if axis is not None:
            shape.insert(axis % (len(shape) + 1), size)
        values = np.random.default_rng(self.seed).integers(-3, 4, size=shape)
        return values.astype(self.dtype)


@dataclass(frozen=True)
class Output:
    """An output: which leaf it starts from, the operations, and where its axis goes."""

    leaf: int
    operations: tuple[Operation, ...]
    axis: int | None

    def compute(self, leaves):
        x = leaves[self.leaf]
        if x.dtype == jnp.bool_:
            x = x.astype(jnp.int32)
        for operation in self.operations:
            x = operation.apply(x)
        return x


@dataclass(frozen=True)
class Case:
    """All that is drawn for one comparison."""

    size: int
    args: tuple[Any, ...]
    keyword: Leaf | None
    in_axes: Any
    outputs: tuple[Output, ...]
    one_out_axis: bool
    says_size: bool
    order: tuple[int, ...] | None
    places: tuple[str, ...]

    def fun(self, *args, **kwargs):
        """The drawn function."""
        leaves = jax.tree.leaves((args, kwargs))
        return {f"out {k}": o.compute(leaves) for k, o in enumerate(self.outputs)}

    @property
    def is_exact(self):
        return all(
            op.is_exact or (op.name == "pmean" and self.size in (1, 2, 4, 8))
            for o in self.outputs
            for op in o.operations
        )

    @property
    def devices(self):
        return None if self.order is None else [DEVICES[k] for k in self.order]

    def out_axes(self, ranks):
        """The drawn output axes, brought into the range that the outputs' ranks allow."""
        if self.one_out_axis:
            return _in_range(self.outputs[0].axis or 0, min(ranks))
        return {
            f"out {k}": None if o.axis is None else _in_range(o.axis, rank)
            for k, (o, rank) in enumerate(zip(self.outputs, ranks, strict=True))
        }

    def numpy_args(self):
        axes = _axes_of_leaves(self.in_axes, self.args)
        leaves, tree = jax.tree.flatten(self.args, is_leaf=_is_leaf)
        rows = [leaf.whole(self.size, axis) for leaf, axis in zip(leaves, axes, strict=True)]
        kwargs = {"keyword": self.keyword.whole(self.size, 0)} if self.keyword else {}
        return jax.tree.unflatten(tree, rows), kwargs

    def placed(self, args_and_kwargs, *, places=None):
        """The arguments, each put where the drawn word for it says."""
        places = places or self.places
        leaves, tree = jax.tree.flatten(args_and_kwargs)
        used = self.devices or DEVICES[: self.size]
        placed = [place(x, places[k % len(places)], used) for k, x in enumerate(leaves)]
        return jax.tree.unflatten(tree, placed)


def _is_leaf(x):
    return isinstance(x, Leaf)


def _in_range(axis, rank):
    return axis % (rank + 1) if axis >= 0 else -(1 + axis % (rank + 1))


def _axes_of_leaves(in_axes, args):
    axes = (in_axes,) * len(args) if in_axes is None or isinstance(in_axes, int) else in_axes
    flat = []

    def record(axis, subtree):
        flat.extend([axis] * len(jax.tree.leaves(subtree, is_leaf=_is_leaf)))

    jax.tree.map(record, axes, args, is_leaf=lambda axis: axis is None)
    return flat


PLACES = [
    *("numpy", "uncommitted", "committed", "placed", "placed explicitly", "replicated"),
    *("reversed", "split elsewhere"),
]


def place(x, where, used):
    """Put an array where the drawn word says, `used` being the devices of the pmap."""
    mesh = Mesh(np.array(used), ("any",))
    if where == "numpy":
        return x
    if where == "uncommitted":
        return jnp.asarray(x)
    if where == "committed":
        return jax.device_put(x, DEVICES[-1])
    if where == "placed explicitly":
        mesh = Mesh(np.array(used), ("any",), axis_types=(AxisType.Explicit,))
    if where == "reversed":
        mesh = Mesh(np.array(used)[::-1], ("any",))
    if where == "split elsewhere":
        mesh = Mesh(np.array(DEVICES[:2]), ("any",))
    spec = P() if where == "replicated" else _first_axis_that_divides(x.shape, mesh.size)
    return jax.device_put(x, NamedSharding(mesh, spec))


def _first_axis_that_divides(shape, count):
    for axis, size in enumerate(shape):
        if size % count == 0 and size:
            return P(*[None] * axis, "any")
    return P()


row_shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
leaves = st.builds(
    Leaf,
    row_shape=row_shapes,
    dtype=st.sampled_from(["float32", "float32", "float32", "int32", "bool"]),
    seed=st.integers(0, 99),
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2).map(tuple)
        | st.lists(inner, min_size=1, max_size=2)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
        | st.tuples(inner, st.none())
    ),
    max_leaves=3,
)


@st.composite
def axes_for(draw, tree, *, whole=False):
    """A prefix of `tree` with an axis or None in every place; one for all of it if `whole`."""
    is_container = isinstance(tree, tuple | list | dict)
    if is_container and not whole and draw(st.booleans()):
        if isinstance(tree, dict):
            return {key: draw(axes_for(value)) for key, value in tree.items()}
        return type(tree)(draw(axes_for(child)) for child in tree)
    ranks = [len(leaf.row_shape) for leaf in jax.tree.leaves(tree, is_leaf=_is_leaf)]
    least = min(ranks, default=0)
    return draw(st.one_of(st.none(), st.integers(-least - 1, least)))


@st.composite
def cases(draw, *, max_size=None, differentiable=False, collectives=True):
    """A whole comparison."""
    size = draw(st.integers(1, max_size or len(DEVICES)))
    args = tuple(draw(st.lists(trees, min_size=1, max_size=2)))
    keyword = draw(st.none() | leaves)
    if draw(st.booleans()):
        in_axes = draw(axes_for(args, whole=True))
    else:
        in_axes = tuple(draw(axes_for(arg)) for arg in args)
    leaf_axes = [*_axes_of_leaves(in_axes, args), *([0] if keyword else [])]
    operations = [
        operation
        for operation in LOCAL + (COLLECTIVE * 2 if collectives else [])
        if operation.is_differentiable or not differentiable
    ]
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        leaf = draw(st.integers(0, len(leaf_axes) - 1))
        chain = tuple(draw(st.lists(st.sampled_from(operations), max_size=3)))
        varies = leaf_axes[leaf] is not None
        for operation in chain:
            varies = varies if operation.varies is None else operation.varies
        axis = draw(st.integers(-3, 3) if varies else st.integers(-3, 3) | st.none())
        outputs.append(Output(leaf, chain, axis))
    return Case(
        size=size,
        args=args,
        keyword=keyword,
        in_axes=in_axes,
        outputs=tuple(outputs),
        one_out_axis=draw(st.booleans()),
        says_size=draw(st.booleans()) or all(axis is None for axis in leaf_axes),
        order=draw(st.none() | st.permutations(range(len(DEVICES))).map(lambda p: tuple(p[:size]))),
        places=tuple(draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4))),
    )
