"""What a verdict reports: outputs, collectives by line, and a function to run."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import batch_bodies
from batch_bodies import pmean, psum
from global_batch import verdict_of
from pmapx._src.batch_parallel.global_function import global_function
from pmapx._src.batch_parallel.traces import PER_DEVICE
from pmapx._src.batch_parallel.verdict import Replacement, decide

N = 4


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def decided(body, *arguments, axes, n=N):
    return decide(body, arguments, axes, axis_name="i", axis_size=n)


def by_name(verdict):
    return {each.name: each for each in verdict.collectives}


def test_psum_of_mean_gradients_is_n_times_them_so_that_the_step_size_does_not_change():
    arguments, axes = batch_bodies.labelled(N)
    body = batch_bodies.train(psum)

    verdict = verdict_of(body, arguments, axes, N)

    collectives = by_name(verdict)
    assert collectives["psum"].replacement is Replacement.TIMES_N
    assert "n times the mean over the global batch" in collectives["psum"].meaning
    assert collectives["pmean"].replacement is Replacement.IDENTITY
    p, x, y = arguments
    whole = x.reshape(-1, x.shape[-1]), y.reshape(-1)
    stepped, _ = global_function(verdict)(p, *whole)
    gradient = jax.grad(batch_bodies.mean_loss)(p, *whole)
    np.testing.assert_allclose(stepped["w"], p["w"] - 0.1 * N * gradient["w"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "name", "replacement"),
    [
        (lambda x: pmean(x.mean()), "pmean", Replacement.IDENTITY),
        (lambda x: pmean(x.sum()), "pmean", Replacement.OVER_N),
        (lambda x: psum(x.sum()), "psum", Replacement.IDENTITY),
        (lambda x: psum(x.mean()), "psum", Replacement.TIMES_N),
        (lambda x: psum((x.mean(), x.sum())), "psum", Replacement.MIXED),
        (lambda x: psum(jnp.float32(2)) * x, "psum", Replacement.TIMES_N),
        (lambda x: lax.pmax(x.max(), "i"), "pmax", Replacement.IDENTITY),
        (lambda x: lax.all_gather(x, "i", tiled=True), "all_gather", Replacement.IDENTITY),
        (lambda x: x * lax.psum(1, "i"), "axis size", Replacement.CONSTANT_N),
        (lambda x: pmean(x.mean() ** 2), "pmean", Replacement.KEEP),
        (
            lambda x: x[:, 0] + jnp.arange(x.shape[0]) + lax.axis_index("i") * x.shape[0],
            "axis_index",
            Replacement.ZERO,
        ),
    ],
)
def test_each_collective_has_its_replacement(body, name, replacement):
    verdict = decided(body, struct(2, 3), axes=(0,))
    assert by_name(verdict)[name].replacement is replacement


def test_collective_is_found_by_its_file_and_line():
    def body(x):
        loss = x.mean()
        return lax.pmean(loss, "i")

    [collective] = decided(body, struct(2, 3), axes=(0,)).collectives
    _, first = inspect.getsourcelines(body)
    assert (collective.file, collective.line) == (__file__, first + 2)


def test_derivative_of_a_collective_is_replaced_with_it():
    verdict = decided(
        lambda w, x: pmean(jax.grad(lambda w: (pmean((x * w).mean(0)) ** 2).sum())(w)),
        struct(3),
        struct(2, 3),
        axes=(None, 0),
    )
    assert verdict.is_batch_parallel
    assert {each.replacement for each in verdict.collectives} == {Replacement.IDENTITY}


@pytest.mark.parametrize(
    ("inner", "outer", "replacements"),
    [
        (lambda h: psum(h.sum()), pmean, {"psum": "IDENTITY", "pmean": "IDENTITY"}),
        (lambda h: psum(h.sum()), psum, {"psum": ("IDENTITY", "TIMES_N")}),
        (lambda h: psum(h.mean()), pmean, {"psum": "TIMES_N", "pmean": "IDENTITY"}),
        (lambda h: pmean(h.mean()), psum, {"pmean": "IDENTITY", "psum": "TIMES_N"}),
        (lambda h: pmean(h.sum()), psum, {"pmean": "OVER_N", "psum": "TIMES_N"}),
        (
            lambda h: h.mean() + psum(h.sum()) * 0.1,
            pmean,
            {"psum": "IDENTITY", "pmean": "IDENTITY"},
        ),
    ],
)
def test_loss_over_all_devices_is_differentiated_as_the_code_over_the_global_batch_is(
    inner, outer, replacements
):
    """JAX's derivative of psum under pmap is psum: n times that of the sum in its place."""

    def body(w, x):
        grads = jax.grad(lambda w: inner(jnp.tanh(x * w)) + 0.1 * (w**2).sum())(w)
        return lax.psum(grads, "i") if outer is psum else lax.pmean(grads, "i")

    x = np.random.RandomState(0).normal(size=(N, 2, 3)).astype(np.float32)
    w = np.ones(3, np.float32)
    verdict = decided(body, w, x[0], axes=(None, 0))
    assert verdict.is_batch_parallel, [str(reason) for reason in verdict.reasons]
    found = [(each.name, each.replacement.name) for each in verdict.collectives]
    for name, expected in replacements.items():
        wanted = expected if isinstance(expected, tuple) else (expected,)
        assert sorted(r for n, r in found if n == name) == sorted(wanted), found
    expected = jax.vmap(body, (None, 0), axis_name="i")(w, x)[0]
    result = jax.jit(global_function(verdict))(w, x.reshape(-1, 3))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_reason_names_the_line_of_the_user():
    def body(x):
        centred = x - x.mean(0)
        return lax.pmean(centred.mean(), "i")

    [reason] = decided(body, struct(2, 3), axes=(0,)).reasons
    _, first = inspect.getsourcelines(body)
    assert reason.line == f"test_verdict.py:{first + 1}"
    assert str(reason) == (
        f"`sub` at {reason.line} combines per-example values with a mean over the device's own "
        "examples"
    )


def test_outputs_are_replicated_global_or_sharded():
    verdict = decided(
        lambda w, x: {"w": w * 2, "loss": psum((x * w).sum()), "y": (x * w).T},
        struct(3),
        struct(2, 3),
        axes=(None, 0),
    )
    loss, w, y = verdict.outputs
    assert (loss.batch_axis, loss.is_global) == (None, True)
    assert (w.batch_axis, w.is_global) == (None, False)
    assert y.batch_axis == 1


def test_batch_axes_are_given_for_arguments_or_their_parts():
    batch = {"x": struct(2, 3), "mask": struct(3, 2), "scale": struct()}
    verdict = decided(
        lambda b: psum((b["x"] * b["mask"].T * b["scale"]).sum()),
        batch,
        axes=({"x": 0, "mask": -1, "scale": None},),
    )
    assert verdict.is_batch_parallel


def test_microbatches_on_an_axis_of_their_own_keep_their_examples():
    """(accumulation steps, b, D): the batch is the second axis, and steps may depend on others."""

    def body(w, xs):
        return lax.scan(lambda w, x: (w - pmean((x * w).mean(0)), None), w, xs)[0]

    assert decided(body, struct(3), struct(5, 2, 3), axes=(None, 1)).is_batch_parallel


def test_result_of_one_device_is_named_with_its_line():
    body = lambda x: {"loss": x.mean()}
    line = f"test_verdict.py:{body.__code__.co_firstlineno}"
    [reason] = decided(body, struct(2, 3), axes=(0,)).reasons
    assert str(reason).startswith(f"output['loss'] at {line} is a mean over the device's own")


def test_line_that_fails_for_the_global_batch_is_named():
    def body(x):
        assert x.shape == (2, 3)
        return x

    line = f"test_verdict.py:{body.__code__.co_firstlineno + 1}"
    [reason] = decided(body, struct(2, 3), axes=(0,)).reasons
    assert str(reason).startswith(
        f"the body cannot be traced for the global batch ({line}): AssertionError"
    )


def test_key_for_each_device_is_named_where_it_matters():
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    body = lambda key, x: (x * jax.random.normal(key), x)
    line = f"test_verdict.py:{body.__code__.co_firstlineno}"
    verdict = decided(body, key, struct(2, 3), axes=(PER_DEVICE, 0))
    noisy, kept = verdict.outputs
    why = f"argument 0 differs between devices and has no batch axis (used at {line})"
    assert str(noisy.reason) == why
    assert kept.batch_axis == 0
    unused = decided(lambda key, x: x, key, struct(2, 3), axes=(PER_DEVICE, 0))
    assert unused.is_batch_parallel


def test_any_hashable_names_the_axis():
    axis = ("data", 1)
    body = lambda x: lax.pmean(x.mean(), axis_name=(axis,))
    assert decide(body, (struct(2, 3),), (0,), axis_name=axis, axis_size=2).is_batch_parallel


def test_one_device_is_decided_as_two():
    assert decided(lambda x: pmean(x.mean()), struct(2, 3), axes=(0,), n=1).axis_size == 2
    assert not decided(lambda x: x - x.mean(), struct(2, 3), axes=(0,), n=1).is_batch_parallel


def test_values_drawn_at_trace_time_are_not_constants():
    random = np.random.RandomState(0)
    verdict = decided(
        lambda x: x * random.normal(size=3).astype(np.float32), struct(2, 3), axes=(0,)
    )
    assert not verdict.is_batch_parallel


def test_primitive_of_a_library_is_not_trusted():
    primitive = Primitive("tanh")
    primitive.def_abstract_eval(lambda x: x)
    [reason] = decided(lambda x: primitive.bind(x), struct(2, 3), axes=(0,)).reasons
    assert "JAX does not define" in str(reason)


def test_callback_is_not_trusted():
    shape = struct(2, 3)
    body = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    assert not decided(body, shape, axes=(0,)).is_batch_parallel


def test_collectives_inside_of_control_flow_are_replaced_when_it_runs():
    def body(flag, x):
        step = lambda c, _: (0.5 * c + psum(x.mean(0)), None)
        total = lax.scan(step, jnp.zeros(3), None, 3)[0]
        total = lax.while_loop(lambda c: c[0] > 1, lambda c: c - psum((x**2).mean(0)), total)
        return lax.cond(flag, lambda: psum(x.mean(0)), lambda: total)

    x = np.random.RandomState(0).normal(size=(N, 2, 3)).astype(np.float32)
    for flag in (False, True):
        verdict = decided(body, flag, x[0], axes=(None, 0))
        assert verdict.is_batch_parallel, verdict.reasons
        expected = jax.vmap(body, (None, 0), axis_name="i")(flag, x)[0]
        found = jax.jit(global_function(verdict))(flag, x.reshape(-1, 3))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rejected_body_has_no_global_function():
    verdict = decided(lambda x: x - x.mean(0), struct(2, 3), axes=(0,))
    with pytest.raises(ValueError, match="combines per-example values"):
        global_function(verdict)
