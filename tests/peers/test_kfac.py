"""kfac-jax: steps of its optimizer on many devices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from results import NOT_HERE, as_numpy, assert_close, assert_same_bits

pytest.importorskip("kfac_jax", reason=NOT_HERE)

import kfac_jax
from kfac_jax._src import tag_graph_matcher

pytestmark = [pytest.mark.needs_devices(4), pytest.mark.slow]

ROWS = 8


def eval_jaxpr_eqn(eqn, in_values):
    output = eqn.primitive.bind(*in_values, **eqn.primitive.get_bind_params(eqn.params))
    return output if isinstance(output, list) else [output]


if jax.__version_info__ >= (0, 9, 2) and kfac_jax.__version__ == "0.0.8":
    # The newest release of kfac-jax cannot read a jaxpr of these releases of JAX, pmap or not; its
    # next one does it like this.
    tag_graph_matcher.eval_jaxpr_eqn = eval_jaxpr_eqn


def loss_of(params, batch):
    images, labels = batch
    hidden = images
    for layer, (weights, bias) in enumerate(params):
        hidden = hidden @ weights + bias
        if layer < len(params) - 1:
            hidden = jnp.tanh(hidden)
    kfac_jax.register_softmax_cross_entropy_loss(hidden, labels)
    picked = jnp.take_along_axis(jax.nn.log_softmax(hidden), labels[:, None], axis=1)
    return -picked.mean() + 0.5e-3 * kfac_jax.utils.inner_product(params, params)


def initial_params():
    rng = np.random.default_rng(0)
    sizes = [6, 8, 2]
    shapes = itertools.pairwise(sizes)
    return [
        (jnp.asarray(rng.normal(size=s).astype(np.float32) / 3), jnp.zeros(s[1])) for s in shapes
    ]


def batches(devices):
    """The same examples each time, split over the devices, or whole for none."""
    rng = np.random.default_rng(1)
    shape = (devices, ROWS // devices) if devices else (ROWS,)
    while True:
        images = rng.normal(size=(*shape, 6)).astype(np.float32)
        yield images, (images.sum(-1) > 0).astype(np.int32)


def optimize(mode, steps):
    """A few steps; returns the losses by step, and the parameters."""
    devices = jax.local_device_count() if mode == "mapped" else 0
    optimizer = kfac_jax.Optimizer(
        value_and_grad_func=jax.value_and_grad(loss_of),
        l2_reg=1e-3,
        learning_rate_schedule=lambda step: 0.05,
        momentum_schedule=lambda step: 0.9,
        damping_schedule=lambda step: 1e-2,
        estimation_mode="fisher_exact",
        inverse_update_period=2,
        num_burnin_steps=0,
        multi_device=bool(devices),
    )
    source = batches(devices)
    params, key = initial_params(), jax.random.PRNGKey(2)
    if devices:
        params = kfac_jax.utils.replicate_all_local_devices(params)
        key = kfac_jax.utils.make_different_rng_key_on_all_devices(key)
    state = optimizer.init(params, key, next(source))
    losses = []
    for step in range(steps):
        params, state, stats = optimizer.step(
            params, state, key, batch=next(source), global_step_int=step
        )
        losses.append(stats["loss"])
    found = [losses, params]
    return as_numpy(kfac_jax.utils.get_first(found) if devices else found)


def test_steps_on_many_devices_give_the_numbers_of_jax_pmap_and_of_one(installed, with_jax_pmap):
    found = optimize("mapped", 5)
    losses, _ = found
    assert losses[-1] < losses[0]
    assert_close(found, optimize("alone", 5), rtol=1e-3, atol=1e-4)
    assert_same_bits(found, with_jax_pmap(optimize, "mapped", 5))
