"""How this package runs on several devices."""

import functools

import jax
import numpy as np

AXIS = "batch"


def parallelize(fun=None, **kwargs):
    """jax.pmap over AXIS; with and without arguments, as a decorator."""
    if fun is None:
        return functools.partial(parallelize, **kwargs)
    return jax.pmap(fun, axis_name=AXIS, **kwargs)


def replicate(tree):
    return jax.device_put_replicated(tree, jax.local_devices())


def first(tree):
    return jax.tree.map(lambda x: np.asarray(x[0]), tree)
