"""Bodies that look like functions of the global batch and are not, beside those that are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import global_batch

N, B, D = 4, 4, 3
KEY = jax.random.key(0)


def pmean(x):
    return lax.pmean(x, "i")


def psum(x):
    return lax.psum(x, "i")


def gather(x, **options):
    return lax.all_gather(x, "i", **options)


def inputs(b=B):
    r = np.random.RandomState(0)
    w, x = r.normal(size=D).astype(np.float32), r.normal(size=(N, b, D)).astype(np.float32)
    return (w, x, r.randint(0, D, (N, b)).astype(np.int32)), (None, 0, 0)


def clipped_by_example(w, x):
    def gradient(a):
        g = jax.grad(lambda w: jnp.tanh(a @ w))(w)
        return g / jnp.maximum(1, jnp.linalg.norm(g))

    return pmean(jax.vmap(gradient)(x).mean(0))


def inverse_covariance(w, x, y):
    return jnp.linalg.inv(pmean(x.T @ x / x.shape[0]) + jnp.eye(D))


def microbatches(step, start):
    return lambda w, x, y: lax.scan(step, start, x.reshape(2, -1, D))


HOLDS = {
    "constant that equals b": lambda w, x, y: pmean((x * w).sum(0) / B),
    "constant that equals n": lambda w, x, y: psum((x * w).mean()) / N,
    "sum over the local size": lambda w, x, y: psum((x * w).sum() / x.shape[0]),
    "square of the global mean": lambda w, x, y: pmean(x.mean()) ** 2,
    "variance by sums": lambda w, x, y: psum((x**2).sum(0)) - psum(x.sum(0)) ** 2,
    "weights over the global weight": lambda w, x, y: (
        psum((x * y[:, None]).sum()) / jnp.maximum(psum(y.sum()), 1)
    ),
    "selection by a global sum": lambda w, x, y: pmean(jnp.where(psum(x.sum()) > 0, x.mean(), 0.0)),
    "integers": lambda w, x, y: (psum(y.sum()), psum(y.sum()) / lax.psum(y.shape[0], "i")),
    "psum of ones of a type": lambda w, x, y: psum(y.mean()) / lax.psum(1.0, "i"),
    "the number of devices": lambda w, x, y: lax.psum(1, "i") * w,
    "the global size": lambda w, x, y: (lax.psum(1, "i") * x.shape[0] * w, lax.axis_size("i")),
    "psum of psum": lambda w, x, y: psum(psum(x.sum())),
    "pmean of pmean": lambda w, x, y: pmean(pmean(x.mean())),
    "centred by a global maximum": lambda w, x, y: x - lax.pmax(x.max(0), "i"),
    "minimum by a maximum": lambda w, x, y: -lax.pmax(-x.min(), "i"),
    "all are finite": lambda w, x, y: lax.pmin(jnp.isfinite(x).all().astype(int), "i"),
    "flat": lambda w, x, y: psum(jnp.tanh(x.T.reshape(-1)).sum()),
    "flat product": lambda w, x, y: psum(x.reshape(-1) @ jnp.ones(x.size)),
    "pairs of features": lambda w, x, y: psum(
        (x.reshape(-1, 2, D) * jnp.array([1.0, 2.0])[None, :, None]).sum()
    ),
    "two views": lambda w, x, y: pmean(jnp.tanh(jnp.concatenate([x, 2 * x, 3 * x])).mean()),
    "repeated examples": lambda w, x, y: jnp.repeat(x, 2, 0),
    "interleaved examples": lambda w, x, y: jnp.stack([x, 2 * x], 1).reshape(-1, D),
    "stacked views": lambda w, x, y: jnp.stack([x, 2 * x]),
    "segment sum": lambda w, x, y: psum(jax.ops.segment_sum(x, y, D)),
    "histogram": lambda w, x, y: psum(jnp.bincount(y, length=D)),
    "one-hot product": lambda w, x, y: psum(jax.nn.one_hot(y, D).T @ x),
    "own column": lambda w, x, y: x[jnp.arange(x.shape[0]), y],
    "own column, written": lambda w, x, y: x.at[jnp.arange(x.shape[0]), y].set(0.0),
    "own column, derivative": lambda w, x, y: jax.grad(
        lambda x: x[jnp.arange(x.shape[0]), y].sum()
    )(x),
    "sorted labels of all": lambda w, x, y: jnp.sort(gather(y, tiled=True)),
    "median of all": lambda w, x, y: jnp.median(gather(x).reshape(-1, D), 0),
    "mean of a gathered array": lambda w, x, y: gather(x).mean((0, 1)),
    "gathered along the second axis": lambda w, x, y: gather(x.T, axis=1, tiled=True),
    "sharded update": lambda w, x, y: gather(
        lax.psum_scatter(jnp.tile(x.mean(0), N), "i", tiled=True) * 0.1, tiled=True
    ),
    "map over examples": lambda w, x, y: lax.map(lambda a: jnp.tanh(a) * w, x),
    "sum by a loop": lambda w, x, y: psum(
        lax.scan(lambda c, a: (c + jnp.tanh(a), None), jnp.zeros(D), x)[0]
    ),
    "one factor for all examples": lambda w, x, y: pmean((jax.random.beta(KEY, 1, 1) * x).mean()),
    "raw key": lambda w, x, y: x * jax.random.normal(jax.random.PRNGKey(0), (D,)),
    "clipped example by example": lambda w, x, y: clipped_by_example(w, x),
    "inverse of the covariance": inverse_covariance,
    "factorization of each example": lambda w, x, y: jax.vmap(
        lambda a: jnp.linalg.cholesky(jnp.outer(a, a) + jnp.eye(D))
    )(x),
    "Fourier transform of features": lambda w, x, y: psum(jnp.fft.fft(x, axis=1).sum(0)).real,
    "derivative of a derivative": lambda w, x, y: pmean(
        jax.jvp(jax.grad(lambda w: jnp.tanh(x @ w).mean()), (w,), (w,))[1]
    ),
    "derivative of a branch": lambda w, x, y: pmean(
        jax.grad(
            lambda w: lax.cond(w[0] > 0, lambda: jnp.tanh(x @ w).mean(), lambda: (x @ w).mean())
        )(w)
    ),
    "steps to a gradient of the global mean": lambda w, x, y: pmean(
        jax.grad(lambda w: jnp.tanh(x @ (w - pmean(jax.grad(lambda w: (x @ w).mean())(w)))).mean())(
            w
        )
    ),
    "sign of a gradient by example": lambda w, x, y: jnp.sign(
        jax.grad(lambda x: jnp.tanh(x @ w).mean())(x)
    ),
    "norm of two examples": lambda w, x, y: pmean(jnp.abs(x.reshape(-1, 2, D).std(1)).mean()),
    "position in the global batch": lambda w, x, y: (
        lax.axis_index("i") * x.shape[0] + jnp.arange(x.shape[0])
    ),
    "softmax over features": lambda w, x, y: jax.nn.softmax(x, 1),
}
FAILS = {
    "integer quotient that cancels b": lambda w, x, y: pmean(x.sum(0) * (16 // x.shape[0])),
    "integer quotient": lambda w, x, y: pmean(x.mean()) * (100 // x.shape[0]),
    "power of b": lambda w, x, y: pmean(x.mean()) ** x.shape[0],
    "square of b": lambda w, x, y: psum(x.sum()) / x.shape[0] ** 2,
    "b itself": lambda w, x, y: jnp.float32(x.shape[0]),
    "branch on b": lambda w, x, y: pmean(x.mean()) * (1 if x.shape[0] < 5 else 2),
    "unbiased variance": lambda w, x, y: pmean(x.var(0, ddof=1)),
    "variance": lambda w, x, y: pmean(x.var(0)),
    "square of a local mean": lambda w, x, y: pmean(x.mean() ** 2),
    "weights over the local weight": lambda w, x, y: psum(
        (x * y[:, None]).sum() / jnp.maximum(y.sum(), 1)
    ),
    "local segment mean": lambda w, x, y: pmean(
        jax.ops.segment_sum(x, y, D) / (1 + jnp.bincount(y, length=D)[:, None])
    ),
    "logsumexp over the batch": lambda w, x, y: pmean(jax.nn.logsumexp(x, 0)),
    "softmax over the batch": lambda w, x, y: jax.nn.softmax(x, 0),
    "local maximum": lambda w, x, y: x - x.max(0),
    "pmax of a minimum": lambda w, x, y: lax.pmax(x.min(), "i"),
    "pmax of a sum": lambda w, x, y: lax.pmax(x.sum(), "i"),
    "devices with any": lambda w, x, y: psum((x > 0).any().astype(int)),
    "bits of integers": lambda w, x, y: lax.pmax(lax.reduce_or(y, (0,)), "i"),
    "argmax over the batch": lambda w, x, y: jnp.argmax(x, 0),
    "largest of the batch": lambda w, x, y: lax.top_k(x.T, 2)[0],
    "sorted batch": lambda w, x, y: jnp.sort(x, 0),
    "cumulative sum": lambda w, x, y: jnp.cumsum(x, 0),
    "unique": lambda w, x, y: jnp.unique(y, size=D),
    "first example": lambda w, x, y: psum(x[0]),
    "first half": lambda w, x, y: psum(x[: x.shape[0] // 2].sum()),
    "first element": lambda w, x, y: psum(x.reshape(-1)[0]),
    "examples by label": lambda w, x, y: x[y],
    "reversed examples": lambda w, x, y: x[jnp.arange(x.shape[0])[::-1]],
    "mixed with the reversed batch": lambda w, x, y: pmean(jnp.tanh(0.3 * x + x[::-1]).mean()),
    "mixed with the next example": lambda w, x, y: pmean(jnp.tanh(x + jnp.roll(x, 1, 0)).mean()),
    "shifted column": lambda w, x, y: x[(jnp.arange(x.shape[0]) + 1) % x.shape[0], y],
    "identity of the batch": lambda w, x, y: jnp.eye(x.shape[0]) @ x,
    "triangle of the batch": lambda w, x, y: jnp.tril(jnp.ones((x.shape[0],) * 2)) @ x,
    "differences of all pairs": lambda w, x, y: psum(jnp.abs(x[:, None] - x[None]).sum()),
    "products of all pairs": lambda w, x, y: pmean(jnp.tanh(x @ x.T).mean()),
    "padded batch": lambda w, x, y: psum(jnp.pad(x, ((0, 1), (0, 0)), constant_values=1.0).sum()),
    "a constant example": lambda w, x, y: psum(jnp.concatenate([x, jnp.ones((1, D))]).sum()),
    "two views in order": lambda w, x, y: jnp.concatenate([x, 2 * x]),
    "two orders": lambda w, x, y: jnp.concatenate([x, x]) * jnp.repeat(x, 2, 0),
    "sum over devices": lambda w, x, y: gather(x).sum(0),
    "psum of examples": lambda w, x, y: psum(x),
    "psum of each example": lambda w, x, y: jax.vmap(psum)(x),
    "loop with a carry": lambda w, x, y: lax.scan(lambda c, a: (c * 0.5 + a, c), w, x)[1],
    "loop that starts elsewhere": lambda w, x, y: psum(
        lax.scan(lambda c, a: (c + a, None), w, x)[0]
    ),
    "loop over indices": lambda w, x, y: psum(
        lax.fori_loop(0, x.shape[0], lambda i, c: c + i * x[i], jnp.zeros(D))
    ),
    "collective in a map": lambda w, x, y: lax.map(lambda a: psum(a) * w, x),
    "loop until each example is large": jax.vmap(
        lambda w, a, y: lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, a), (None, 0, 0)
    ),
    "branch on local data": lambda w, x, y: pmean(
        lax.cond(x.sum() > 0, lambda: x.mean(), lambda: 0.0)
    ),
    "selection by local data": lambda w, x, y: pmean(jnp.where(x.sum() > 0, x.mean(), 0.0)),
    "local mean made finite": lambda w, x, y: pmean(jnp.nan_to_num(x.mean())),
    "rounded sum": lambda w, x, y: psum(x.sum().astype(int)),
    "integer mean": lambda w, x, y: psum(y.sum() // x.shape[0]),
    "gamma of each example": lambda w, x, y: jax.random.gamma(KEY, 1 + jnp.abs(x)),
    "Poisson of each example": lambda w, x, y: jax.random.poisson(KEY, 1 + jnp.abs(x)),
    "category of each example": lambda w, x, y: jax.random.categorical(KEY, x),
    "alternating sum": lambda w, x, y: psum(
        lax.scan(lambda c, a: (-c + a, None), jnp.zeros(D), x)[0]
    ),
    "difference to a sum": lambda w, x, y: psum(
        lax.scan(lambda c, a: (a - c, None), jnp.zeros(D), x)[0]
    ),
    "derivative of a branch of another scale": lambda w, x, y: pmean(
        jax.grad(lambda w: lax.cond(w[0] > 0, lambda: (x @ w).sum(), lambda: (x @ w).mean()))(w)
    ),
    "gradient by example": lambda w, x, y: jax.grad(lambda x: jnp.tanh(x @ w).mean())(x),
    "norm of halves": lambda w, x, y: pmean(jnp.abs(x.reshape(2, -1, D).std(1)).mean()),
    "position with another stride": lambda w, x, y: (
        lax.axis_index("i") * 3 + jnp.arange(x.shape[0])
    ),
    "first device": lambda w, x, y: psum(jnp.where(lax.axis_index("i") == 0, x.sum(), 0.0)),
    "permutation": lambda w, x, y: jax.random.permutation(KEY, x),
    "keys by position": lambda w, x, y: jax.vmap(jax.random.normal)(
        jax.random.split(KEY, x.shape[0])
    ),
    "Fourier transform of the batch": lambda w, x, y: psum(jnp.fft.fft(x, axis=0).real.sum(0)),
    "square of microbatch means": lambda w, x, y: psum(
        lax.scan(lambda c, a: (c + a.mean() ** 2, None), 0.0, x.reshape(2, -1, D))[0]
    ),
    "one of the microbatches": lambda w, x, y: psum(
        lax.scan(lambda c, a: (c, a.sum()), 0.0, x.reshape(2, -1, D))[1][0]
    ),
    "selected microbatches": lambda w, x, y: psum(
        jnp.where(
            jnp.arange(2) > 0, lax.scan(lambda c, a: (c, a.sum()), 0.0, x.reshape(2, -1, D))[1], 0.0
        ).sum()
    ),
    "weighted microbatches": lambda w, x, y: psum(
        lax.scan(
            lambda c, a: (c + a[0] * a[1].sum(), None),
            0.0,
            (jnp.array([1.0, 2.0]), x.reshape(2, -1, D)),
        )[0]
    ),
    "linear solve with a collective inside": lambda w, x, y: lax.custom_linear_solve(
        lambda v: psum(v), w, lambda _, b: b / 2, symmetric=True
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_function_of_the_global_batch_is_recognized_and_holds(name):
    body, (arguments, axes) = HOLDS[name], inputs()
    verdict = global_batch.verdict_of(body, arguments, axes, N)
    assert verdict.is_batch_parallel, [str(reason) for reason in verdict.reasons]
    mapped = jax.jit(jax.vmap(body, in_axes=axes, axis_name="i", axis_size=N))
    expected, found = global_batch.run_both(verdict, arguments, axes, mapped)
    global_batch.assert_close(expected, found, length=N * B * D * 8)


@pytest.mark.parametrize("name", FAILS)
def test_body_that_only_looks_like_one_is_rejected(name):
    body, (arguments, axes) = FAILS[name], inputs()
    verdict = global_batch.verdict_of(body, arguments, axes, N)
    assert not verdict.is_batch_parallel
    assert all(str(reason) for reason in verdict.reasons)


def test_one_example_per_device_is_a_batch():
    body, (arguments, axes) = lambda w, x, y: pmean(jnp.tanh(x @ w).mean()), inputs(b=1)
    verdict = global_batch.verdict_of(body, arguments, axes, N)
    assert verdict.is_batch_parallel
    mapped = jax.vmap(body, in_axes=axes, axis_name="i", axis_size=N)
    global_batch.assert_close(
        *global_batch.run_both(verdict, arguments, axes, mapped), length=N * D * 8
    )
