"""Drawn functions, trees and axes over real processes against `jax.vmap`, the same in each."""

import jax
import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, settings
from rows import HERE, PROCESSES, TOTAL

import pmapx
from drawn_programs import AXIS, _axes_of_leaves, cases
from oracle import assert_same, by_vmap

SETTINGS = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def own(x, axis, size):
    """This process's rows of an array along its mapped axis."""
    if axis is None:
        return x
    rows = size // PROCESSES
    return np.take(x, range(HERE * rows, (HERE + 1) * rows), axis)


def compare(case, **options):
    args, kwargs = case.numpy_args()
    rows = jax.eval_shape(
        by_vmap(case.fun, AXIS, in_axes=case.in_axes, axis_size=case.size), *args, **kwargs
    )
    out_axes = case.out_axes([len(x.shape) - 1 for x in jax.tree.leaves(rows)])
    axes = {"in_axes": case.in_axes, "out_axes": out_axes}
    size = {"axis_size": case.size} if case.says_size else {}
    leaves, tree = jax.tree.flatten(args)
    in_axes = _axes_of_leaves(case.in_axes, args)
    own_args = [own(x, axis, case.size) for x, axis in zip(leaves, in_axes, strict=True)]
    own_kwargs = {name: own(x, 0, case.size) for name, x in kwargs.items()}
    mapped = pmapx.pmap(case.fun, AXIS, **axes, **size, **options)

    result = mapped(*jax.tree.unflatten(tree, own_args), **own_kwargs)
    again = mapped(*jax.tree.unflatten(tree, own_args), **own_kwargs)

    whole = jax.jit(by_vmap(case.fun, AXIS, **axes, axis_size=case.size))(*args, **kwargs)
    flat_axes = _axes_of_leaves((out_axes,), (whole,))
    flat, out_tree = jax.tree.flatten(whole)
    wanted = jax.tree.unflatten(
        out_tree,
        [own(np.asarray(x), axis, case.size) for x, axis in zip(flat, flat_axes, strict=True)],
    )
    tolerance = {} if case.is_exact else {"rtol": 2e-5, "atol": 2e-5}
    for got in (result, again):
        assert_same(got, wanted, **tolerance)


@SETTINGS
@given(case=cases(max_size=TOTAL))
def drawn_call(case):
    assume(case.size % PROCESSES == 0)
    compare(case)


@SETTINGS
@given(case=cases(max_size=3 * TOTAL))
def drawn_oversubscribed_call(case):
    assume(case.size % PROCESSES == 0 and case.size > TOTAL)
    compare(case, oversubscribe=True)


def case_drawn_calls_compute_what_vmap_computes():
    drawn_call()


def case_drawn_oversubscribed_calls_compute_what_vmap_computes():
    import warnings

    warnings.simplefilter("ignore", pmapx.PmapxWarning)
    drawn_oversubscribed_call()
