"""flax.nnx: `nnx.pmap`, over modules that change as they are called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_same_bits

pytest.importorskip("flax", reason=NOT_HERE)

from flax import nnx

pytestmark = pytest.mark.needs_devices(4)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, axis_name="i", rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.norm(self.linear(x))


def train(steps=3):
    count = jax.device_count()

    @nnx.split_rngs(splits=count)
    @nnx.vmap
    def create(rngs):
        return Network(rngs)

    @nnx.pmap(axis_name="i")
    def step(network, x):
        loss, grads = nnx.value_and_grad(lambda network: (network(x) ** 2).mean())(network)
        params = nnx.state(network, nnx.Param)
        descend = lambda p, g: p - 0.1 * jax.lax.pmean(g, "i")
        nnx.update(network, jax.tree.map(descend, params, grads))
        return jax.lax.pmean(loss, "i")

    network = create(nnx.Rngs(0))
    x = np.linspace(-1, 1, count * 12, dtype=np.float32).reshape(count, 4, 3)
    losses = [step(network, x) for _ in range(steps)]
    return as_numpy([losses, jax.tree.leaves(nnx.state(network))])


def test_modules_change_as_they_change_under_jax_pmap(installed, with_jax_pmap):
    trained = train()
    assert any((leaf == 3).all() for leaf in trained[1]), "the calls were not counted"
    assert_same_bits(trained, with_jax_pmap(train))
