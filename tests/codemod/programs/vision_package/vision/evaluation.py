"""Accuracy and confusion over all devices."""

import jax
import jax.numpy as jnp
import numpy as np

import vision
from vision import model
from vision.training import shard


@vision.parallelize
def count(params, images, labels):
    predicted = jnp.argmax(model.apply(params, images), -1)
    confusion = jnp.zeros((3, 3), jnp.int32).at[labels, predicted].add(1)
    return jax.lax.psum(confusion, vision.AXIS)


def evaluate(params, images, labels):
    confusion = np.asarray(count(params, *shard(images, labels)))[0]
    return float(np.trace(confusion) / confusion.sum()), confusion
