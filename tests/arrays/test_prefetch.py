"""Batches are put on their devices ahead of use (F5)."""

import jax
import numpy as np
import pytest

import pmapx
from oracle import assert_same

N = jax.local_device_count()


def batches(count, asked=None):
    for k in range(count):
        if asked is not None:
            asked.append(k)
        yield {"x": np.full((N, 2), k, np.float32), "y": (np.full(N, -k, np.int32),)}


@pytest.mark.behaviour("F5")
def test_all_items_come_in_order_on_their_devices():
    seen = list(pmapx.prefetch(batches(5)))

    assert_same(seen, list(batches(5)))
    for leaf in jax.tree.leaves(seen):
        assert [shard.device for shard in leaf.addressable_shards] == jax.local_devices()


@pytest.mark.parametrize("size", [1, 3])
def test_prefetch_reads_exactly_size_items_ahead(size):
    asked = []
    ahead = pmapx.prefetch(batches(10, asked), size)

    assert asked == []
    next(ahead)
    assert asked == list(range(size))
    next(ahead)
    assert asked == list(range(size + 1))


def test_items_before_an_error_are_not_lost():
    def failing():
        yield np.zeros(N)
        yield np.ones(N)
        raise OSError("disk")

    ahead = pmapx.prefetch(failing(), size=4)

    assert float(next(ahead)[0]) == 0
    assert float(next(ahead)[0]) == 1
    with pytest.raises(OSError, match="disk"):
        next(ahead)


def test_a_wrong_batch_is_named_after_those_before_it():
    ahead = pmapx.prefetch([np.zeros(N), {"x": np.zeros((N + 1, 2))}])

    next(ahead)
    with pytest.raises(ValueError, match=rf"item\['x'\].*\[{N + 1},2\]"):
        next(ahead)


def test_an_empty_iterator_gives_nothing():
    assert list(pmapx.prefetch(iter([]))) == []


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None])
def test_a_size_that_is_none_is_refused_at_once(size):
    with pytest.raises(ValueError, match="size"):
        pmapx.prefetch(batches(1), size)
