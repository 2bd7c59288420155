"""Each collective of `jax.lax` as plain array code on the stacked rows of all map elements.

A model takes the rows, shaped `(n, ...)`, and gives the rows that the n elements hold afterwards.
`jax.vmap` cannot be asked for all of them: it refuses `axis_index_groups` and partial permutations.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Case:
    """One collective: what an element calls, what must come of it, and on which rows."""

    name: str
    call: Any
    model: Any
    row_shape: tuple[int, ...]
    is_linear: bool = True
    in_vmap: bool = True

    def __str__(self):
        return self.name

    def rows(self, n, *, seed=0):
        """Whole numbers in float32, so that any order of summation gives the same bits."""
        values = np.random.default_rng(seed).integers(-9, 10, size=(n, *self.row_shape))
        return jnp.asarray(values, dtype=jnp.float32)


def in_groups(of_group):
    """A model from what one group does: its rows, shaped `(g, ...)`, to their new rows."""

    def model(rows, groups):
        groups = np.array(groups)
        new = jax.vmap(of_group)(rows[groups])
        return new.reshape(len(rows), *new.shape[2:])[np.argsort(groups.ravel())]

    return model


def same_for_all(reduce):
    return in_groups(lambda rows: jnp.broadcast_to(new := reduce(rows), (len(rows), *new.shape)))


def gathered(axis, tiled):
    join = jnp.concatenate if tiled else jnp.stack
    return same_for_all(lambda rows: join(list(rows), axis=axis))


def exchanged(split_axis, concat_axis, tiled):
    """Part k of row q becomes part q of row k."""

    def exchange(rows):
        g = len(rows)
        if tiled:
            rows = _split_dimension(rows, 1 + split_axis, g)
        by_part = jnp.moveaxis(rows, 1 + split_axis, 0)
        new = jnp.moveaxis(by_part, 1, 1 + concat_axis)
        return _merge_with_next(new, 1 + concat_axis) if tiled else new

    return in_groups(exchange)


def scattered(dimension, tiled):
    def scatter(rows):
        total = rows.sum(0)
        if tiled:
            total = _split_dimension(total, dimension, len(rows))
        return jnp.moveaxis(total, dimension, 0)

    return in_groups(scatter)


def _split_dimension(x, axis, parts):
    return x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :])


def _merge_with_next(x, axis):
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def sent(pairs):
    def model(rows):
        new = jnp.zeros_like(rows)
        for source, destination in pairs:
            new = new.at[destination].set(rows[source])
        return new

    return model


def collective_cases(n):
    """Every collective over the axis 'i' of n elements, without groups and with two."""
    return ungrouped_cases(n) + (grouped_cases(n) if n % 2 == 0 else [])


def grouped_cases(n):
    groups = [list(range(0, n, 2)), list(range(1, n, 2))]
    return _cases(groups, f"in {len(groups)} groups", {"axis_index_groups": groups})


def ungrouped_cases(n):
    everyone = [list(range(n))]
    rotation = [(k, (k + 1) % n) for k in range(n)]
    some = rotation[::2]
    shuffle = list(range(n))[::-1]
    return _cases(everyone, "", {}) + [
        Case("ppermute all", lambda x: lax.ppermute(x, "i", rotation), sent(rotation), (3,)),
        Case(
            "ppermute some",
            lambda x: lax.ppermute(x, "i", some),
            sent(some),
            (3,),
            in_vmap=len(some) == n,
        ),
        Case(
            "pshuffle",
            lambda x: lax.pshuffle(x, "i", shuffle),
            lambda rows: rows[np.array(shuffle)],
            (3,),
        ),
        Case(
            "pswapaxes",
            lambda x: lax.pswapaxes(x, "i", 1),
            lambda rows: exchanged(1, 1, tiled=False)(rows, everyone),
            (2, n),
        ),
        Case(
            "axis_index",
            lambda x: x + lax.axis_index("i"),
            lambda rows: rows + jnp.arange(n, dtype=rows.dtype)[:, None],
            (3,),
            is_linear=False,
        ),
        Case(
            "axis_size",
            lambda x: x * lax.axis_size("i"),
            lambda rows: rows * n,
            (3,),
        ),
    ]


def _cases(groups, suffix, options):
    g = len(groups[0])

    def case(name, call, model, row_shape, **flags):
        flags.setdefault("in_vmap", not options)
        in_these_groups = jax.jit(lambda rows: model(rows, groups))
        return Case(f"{name} {suffix}".strip(), call, in_these_groups, row_shape, **flags)

    return [
        case("psum", lambda x: lax.psum(x, "i", **options), same_for_all(lambda r: r.sum(0)), (3,)),
        case(
            "pmean", lambda x: lax.pmean(x, "i", **options), same_for_all(lambda r: r.mean(0)), (3,)
        ),
        case(
            "pmax",
            lambda x: lax.pmax(x, "i", **options),
            same_for_all(lambda r: r.max(0)),
            (3,),
            is_linear=False,
        ),
        case(
            "pmin",
            lambda x: lax.pmin(x, "i", **options),
            same_for_all(lambda r: r.min(0)),
            (3,),
            is_linear=False,
        ),
        case("all_gather", lambda x: lax.all_gather(x, "i", **options), gathered(0, False), (3,)),
        case(
            "all_gather at 1",
            lambda x: lax.all_gather(x, "i", axis=1, **options),
            gathered(1, False),
            (2, 3),
        ),
        case(
            "all_gather tiled",
            lambda x: lax.all_gather(x, "i", axis=1, tiled=True, **options),
            gathered(1, True),
            (2, 3),
        ),
        case(
            "all_to_all",
            lambda x: lax.all_to_all(x, "i", 0, 0, **options),
            exchanged(0, 0, False),
            (g, 3),
        ),
        case(
            "all_to_all to another axis",
            lambda x: lax.all_to_all(x, "i", 0, 1, **options),
            exchanged(0, 1, False),
            (g, 3),
            is_linear=False,  # linear, but no release of JAX can transpose it
        ),
        case(
            "all_to_all tiled",
            lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True, **options),
            exchanged(1, 0, True),
            (2, 2 * g),
        ),
        case(
            "psum_scatter",
            lambda x: lax.psum_scatter(x, "i", **options),
            scattered(0, False),
            (g, 2),
        ),
        case(
            "psum_scatter tiled",
            lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True, **options),
            scattered(1, True),
            (2, 2 * g),
        ),
    ]
