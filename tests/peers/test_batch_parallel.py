"""Training steps of Flax, Haiku, Equinox and optax as functions of the global batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from results import NOT_HERE

from global_batch import assert_close, run_both, verdict_of

optax = pytest.importorskip("optax", reason=NOT_HERE)

N, B, D, C = 4, 4, 6, 3


def labelled(image=False):
    r = np.random.RandomState(0)
    shape = (8, 8, 3) if image else (D,)
    x = r.normal(size=(N, B, *shape)).astype(np.float32)
    return x, r.randint(0, C, (N, B)).astype(np.int32)


def holds(body, arguments, axes):
    verdict = verdict_of(body, arguments, axes, N)
    assert verdict.is_batch_parallel, [str(reason) for reason in verdict.reasons]
    mapped = jax.jit(jax.vmap(body, in_axes=axes, axis_name="i", axis_size=N))
    expected, found = run_both(verdict, arguments, axes, mapped)
    assert_close(expected, found, length=N * B * 512)
    return verdict


def reasons(body, arguments, axes):
    verdict = verdict_of(body, arguments, axes, N)
    assert not verdict.is_batch_parallel
    return " ".join(map(str, verdict.reasons))


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1, momentum=0.9),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
        optax.lamb(1e-2),
        optax.MultiSteps(optax.adam(1e-2), 2),
        optax.apply_if_finite(optax.rmsprop(1e-2), 3),
        optax.adafactor(1e-2),
    ],
    ids=["sgd", "clip and adamw", "lamb", "MultiSteps", "apply_if_finite", "adafactor"],
)
def test_optimizers_of_optax(optimizer):
    x, y = labelled()
    params = {"w": np.random.RandomState(1).normal(size=(D, C)).astype(np.float32)}

    def body(params, moments, x, y):
        grads = jax.grad(lambda p: cross_entropy(x @ p["w"], y))(params)
        updates, moments = optimizer.update(lax.pmean(grads, "i"), moments, params)
        return optax.apply_updates(params, updates), moments

    holds(body, (params, optimizer.init(params), x, y), (None, None, 0, 0))


def flax_model(axis_name, dropout=False):
    nn = pytest.importorskip("flax.linen", reason=NOT_HERE)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            x = nn.Conv(4, (3, 3))(x)
            x = nn.BatchNorm(use_running_average=not train, axis_name=axis_name)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
            x = nn.LayerNorm()(x.reshape(x.shape[0], -1))
            x = nn.Dropout(0.5, deterministic=not dropout)(x)
            return nn.Dense(C)(x)

    return Model()


def flax_step(axis_name, dropout=False):
    # Adam would turn the rounding of a gradient that is zero, of a bias before a norm, into a step.
    model, tx = flax_model(axis_name, dropout), optax.sgd(0.1)
    x, y = labelled(image=True)
    variables = flax_model(None).init(jax.random.key(0), x[0])

    def body(params, stats, moments, key, x, y):
        def loss(params):
            logits, new = model.apply(
                {"params": params, "batch_stats": stats},
                x,
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            return cross_entropy(logits, y), new["batch_stats"]

        (value, stats_), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments_ = tx.update(lax.pmean(grads, "i"), moments, params)
        new = optax.apply_updates(params, updates)
        return new, lax.pmean(stats_, "i"), moments_, lax.pmean(value, "i")

    params, stats = variables["params"], variables["batch_stats"]
    arguments = (params, stats, tx.init(params), jax.random.key(1), x, y)
    return body, arguments, (None, None, None, None, 0, 0)


def test_synced_batch_norm_of_flax():
    verdict = holds(*flax_step("i"))
    libraries = [each.library or "" for each in verdict.collectives]
    assert any(path.endswith("normalization.py") for path in libraries)


def test_local_batch_norm_of_flax():
    assert "over the device's own examples" in reasons(*flax_step(None))


def test_dropout_of_flax():
    assert "from one key" in reasons(*flax_step("i", dropout=True))


def test_attention_of_flax():
    nn = pytest.importorskip("flax.linen", reason=NOT_HERE)

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(11, 8)(tokens)
            mask = nn.make_causal_mask(tokens)
            block = nn.remat(nn.MultiHeadDotProductAttention)
            x = x + block(num_heads=2, deterministic=True)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
            return nn.Dense(11)(x)

    tokens = np.random.RandomState(0).randint(0, 11, (N, B, 7)).astype(np.int32)
    model = Encoder()
    variables = model.init(jax.random.key(0), tokens[0])

    def body(variables, tokens):
        def loss(variables):
            logits = model.apply(variables, tokens)[:, :-1]
            weights = (tokens[:, 1:] > 0).astype(jnp.float32)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return (each * weights).sum() / lax.psum(weights.sum(), "i")

        value, grads = jax.value_and_grad(loss)(variables)
        return lax.psum(grads, "i"), lax.psum(value, "i")

    holds(body, (variables, tokens), (None, 0))


def test_network_of_haiku():
    hk = pytest.importorskip("haiku", reason=NOT_HERE)

    @hk.transform_with_state
    def network(x):
        x = hk.Conv2D(4, 3)(x)
        x = hk.BatchNorm(True, True, 0.9, cross_replica_axis=AXES[-1])(x, is_training=True)
        x = hk.MaxPool(2, 2, "SAME")(jax.nn.relu(x))
        return hk.nets.MLP([8, C])(hk.Flatten()(x))

    AXES = [None]
    x, y = labelled(image=True)
    params, state = network.init(jax.random.PRNGKey(0), x[0])
    AXES.append("i")

    def body(params, state, x, y):
        def loss(params):
            logits, new = network.apply(params, state, None, x)
            return cross_entropy(logits, y), new

        grads, new = jax.grad(loss, has_aux=True)(params)
        return lax.pmean(grads, "i"), lax.pmean(new, "i")

    holds(body, (params, state, x, y), (None, None, 0, 0))
    AXES.append(None)
    assert "over the device's own examples" in reasons(
        body, (params, state, x, y), (None, None, 0, 0)
    )


def test_network_of_equinox():
    eqx = pytest.importorskip("equinox", reason=NOT_HERE)
    x, y = labelled()
    model = eqx.nn.MLP(D, C, 8, 2, key=jax.random.PRNGKey(0))
    params, static = eqx.partition(model, eqx.is_array)

    def body(params, x, y):
        def loss(params):
            return cross_entropy(jax.vmap(eqx.combine(params, static))(x), y)

        value, grads = jax.value_and_grad(loss)(params)
        return lax.pmean(grads, "i"), lax.pmean(value, "i")

    holds(body, (params, x, y), (None, 0, 0))


def test_recurrent_network_of_equinox_with_a_norm_by_example():
    eqx = pytest.importorskip("equinox", reason=NOT_HERE)
    x = np.random.RandomState(0).normal(size=(N, B, 5, D)).astype(np.float32)
    y = np.random.RandomState(1).randint(0, C, (N, B)).astype(np.int32)
    cell = eqx.nn.GRUCell(D, 8, key=jax.random.PRNGKey(0))
    norm, head = eqx.nn.LayerNorm(8), eqx.nn.Linear(8, C, key=jax.random.PRNGKey(1))
    params, static = eqx.partition((cell, norm, head), eqx.is_array)

    def body(params, x, y):
        def loss(params):
            cell, norm, head = eqx.combine(params, static)

            def one(xs):
                return head(norm(lax.scan(lambda h, a: (cell(a, h), None), jnp.zeros(8), xs)[0]))

            return cross_entropy(jax.vmap(one)(x), y)

        return lax.pmean(jax.grad(loss)(params), "i")

    holds(body, (params, x, y), (None, 0, 0))
