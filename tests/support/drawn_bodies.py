"""Hypothesis strategies: mapped bodies of per-example operations, reductions and collectives.

A body is a list of operations on a pool of values. Most are what training code does; some depend
on the device or on the order of examples, and must be rejected wherever they reach a result.
"""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

AXIS = "i"
D = 3


def _fit(x):
    """Keeps numbers in a range where differences can be seen."""
    return jnp.tanh(x / 4) * 4


def _matrix(x):
    """Any value as (rows, D)."""
    return jnp.ones((1, D), x.dtype) * x if x.ndim < 2 else x.reshape(-1, x.shape[-1])[:, :D]


def _pairwise(x):
    return jnp.tanh(_matrix(x) @ _matrix(x).T)


def _accumulate(parts):
    def apply(x):
        m = _matrix(x)
        if m.shape[0] % parts:
            return m.sum()
        xs = m.reshape(parts, -1, D)
        return lax.scan(lambda c, a: (c + jnp.tanh(a).mean(0), None), jnp.zeros(D), xs)[0]

    return apply


def _by_example(x):
    m = _matrix(x)
    total, ys = lax.scan(lambda c, a: (c + a.sum(), a * 2), jnp.float32(0), m)
    return ys + total


def _running(x):
    m = _matrix(x)
    return lax.scan(lambda c, a: (0.5 * c + a, c), jnp.zeros(D), m)[1]


def _gradient(x):
    m = _matrix(x)
    return jax.grad(lambda w: jnp.mean(jnp.tanh(m @ w) ** 2))(jnp.ones((D, D)) / 3)


def _gradient_of_sum(x):
    m = _matrix(x)
    return jax.grad(lambda w: jnp.sum(jnp.tanh(m * w) ** 2))(jnp.ones(D))


def _gradient_through_pmean(x):
    m = _matrix(x)

    def loss(w):
        h = jnp.tanh(m @ w)
        h = h - lax.pmean(h.mean(0), AXIS)
        return (h**2 * m).mean()

    return lax.pmean(jax.grad(loss)(jnp.ones((D, D)) / 3), AXIS)


def _gradient_through_gather(x):
    m = _matrix(x)

    def loss(w):
        h = m @ w
        return jax.nn.logsumexp(h @ lax.all_gather(h, AXIS, tiled=True).T, axis=1).mean()

    return lax.pmean(jax.grad(loss)(jnp.ones((D, D)) / 3), AXIS)


def _positions(x):
    m = _matrix(x)
    return m[jnp.arange(m.shape[0]), jnp.argmax(m, 1)]


def _embedding(x):
    table = jnp.arange(12.0, dtype=jnp.float32).reshape(4, D) / 12
    index = jnp.abs(jnp.floor(x)).astype(jnp.int32) % 4
    return jax.grad(lambda t: jnp.sum(jnp.tanh(t[index])) / index.size)(table)


def _loop(x):
    return lax.fori_loop(0, 2, lambda _, a: jnp.tanh(a) + x, x)


def _loop_of_sums(x):
    return lax.fori_loop(0, 3, lambda _, a: a + x.mean(), jnp.float32(0))


def _data_loop(x):
    return lax.while_loop(lambda c: (c[0].sum() < 5) & (c[1] < 6), lambda c: (c[0] + 1, c[1] + 1),
                          (x, 0))[0]  # fmt: skip


def _branch(x):
    return lax.cond(x.sum() > 0, lambda a: 2 * a, lambda a: a - 1, x)


def _gathered(x):
    gathered = lax.all_gather(x, AXIS)
    return gathered.reshape(-1, *x.shape[1:]) if x.ndim else gathered


def _noise(x):
    return x + jax.random.normal(jax.random.key(3), x.shape)


def _contiguous(x):
    m = _matrix(x)
    return jnp.concatenate([m, 2 * m]).reshape(2, -1, D)[0] + jnp.split(m, 1)[0]


def _twice(x):
    m = _matrix(x)
    both = jnp.concatenate([m, m * m])
    return jnp.tanh(both).mean(0)


def _halves(x):
    m = _matrix(x)
    a, b = jnp.split(jnp.tanh(jnp.concatenate([m, -m])), 2)
    return a * 2 + b


def _flat(x):
    return jnp.tanh(x.reshape(-1))


def _flat_back(x):
    m = _matrix(x)
    return (m.T.reshape(-1) * 2).reshape(D, -1).T


def _convolved(x):
    kernel = jnp.array([[[0.5, 1.0]]])
    return lax.conv_general_dilated(_matrix(x)[:, None], kernel, (1,), "SAME")[:, 0]


def _convolution_gradient(x):
    m = _matrix(x)

    def loss(k):
        return jnp.tanh(lax.conv_general_dilated(m[:, None], k, (1,), "SAME")).mean()

    return jax.grad(loss)(jnp.array([[[0.5, 1.0]]]))[0, 0]


def _pooled_gradient(x):
    def loss(m):
        return lax.reduce_window(m, -jnp.inf, lax.max, (1, 2), (1, 1), "SAME").sum()

    return jax.grad(loss)(jnp.tanh(_matrix(x)))


def _keys_by_content(x):
    def noise(a):
        key = jax.random.fold_in(jax.random.key(1), jnp.floor(a.sum()).astype(jnp.int32))
        return a + jax.random.normal(key, a.shape)

    return jax.vmap(noise)(_matrix(x))


def _microbatch_results(x):
    m = _matrix(x)
    if m.shape[0] % 2:
        return m
    return lax.scan(lambda c, a: (c, jnp.tanh(a).sum(0)), 0, m.reshape(2, -1, D))[1]


@jax.custom_vjp
def _straight(x):
    return jnp.round(x)


_straight.defvjp(lambda x: (jnp.round(x), None), lambda _, ct: (ct,))


def _straight_gradient(x):
    return jax.grad(lambda w: (_straight(_matrix(x) * w) ** 2).mean())(jnp.ones(D))


UNARY = {
    "convolution": _convolved, "gradient of a convolution": _convolution_gradient,
    "gradient of pooling": _pooled_gradient, "noise by content": _keys_by_content,
    "results of microbatches": _microbatch_results, "custom gradient": _straight_gradient,
    "own largest": lambda x: jnp.take_along_axis(
        _matrix(x), jnp.argmax(_matrix(x), 1)[:, None], 1),
    "segments": lambda x: jax.ops.segment_sum(_matrix(x), jnp.argmax(_matrix(x), 1), D),
    "largest of segments": lambda x: jnp.maximum(
        jax.ops.segment_max(_matrix(x), jnp.argmax(_matrix(x), 1), D), -4),
    "by label": lambda x: _matrix(x)[jnp.argmax(_matrix(x), 1) % _matrix(x).shape[0]],
    "gamma": lambda x: _fit(jax.random.gamma(jax.random.key(2), 1 + jnp.abs(x))),
    "padded": lambda x: jnp.pad(_matrix(x), ((0, 1), (0, 0)), constant_values=1),
    "padded features": lambda x: jnp.pad(_matrix(x), ((0, 0), (1, 0)))[:, :D],
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(_matrix(x), 0, 1),
    "dynamic update": lambda x: lax.dynamic_update_slice(
        _matrix(x), jnp.zeros((_matrix(x).shape[0], 1)), (0, 1)),
    "map": lambda x: lax.map(lambda a: a * jnp.tanh(a).sum(), _matrix(x)),
    "pmean of each": lambda x: jax.vmap(lambda a: lax.pmean(a, AXIS))(_matrix(x)),
    "outer": lambda x: jnp.tanh(x[:, None] - x[None]).mean(1) if x.ndim else x,
    "second moment": lambda x: lax.pmean(_matrix(x).T @ _matrix(x) / _matrix(x).shape[0], AXIS),
    "or": lambda x: lax.pmax((x > 2).any().astype(jnp.int32), AXIS) * x,
    "scatter": lambda x: lax.psum_scatter(
        jnp.ones((lax.axis_size(AXIS), 1)) * x.sum(), AXIS, tiled=True),
    "tanh": jnp.tanh, "square": lambda x: _fit(x * x), "negate": lambda x: -x,
    "halve": lambda x: x / 2, "add one": lambda x: x + 1, "relu": lambda x: jnp.maximum(x, 0),
    "sign": jnp.sign, "abs": jnp.abs, "where": lambda x: jnp.where(x > 0, x, 0.5 * x),
    "half precision": lambda x: x.astype(jnp.bfloat16).astype(x.dtype) * 0 + x,
    "softmax": lambda x: jax.nn.softmax(x, -1) if x.ndim > 1 else x,
    "layer norm": lambda x: (x - x.mean(-1, keepdims=True)) if x.ndim > 1 else x,
    "argmax": lambda x: jnp.argmax(x, -1).astype(jnp.float32) if x.ndim else x,
    "max of features": lambda x: x.max(-1) if x.ndim > 1 else x,
    "matmul": lambda x: _fit(_matrix(x) @ (jnp.ones((D, D)) / 2)),
    "mean": lambda x: x.mean(), "sum": lambda x: x.sum(), "mean of axis 0": lambda x:
        x.mean(0) if x.ndim else x, "sum of axis 0": lambda x: x.sum(0) if x.ndim else x,
    "variance": lambda x: x.var(0) if x.ndim else x,
    "unbiased variance": lambda x: x.var(0, ddof=1) if x.ndim and x.shape[0] > 1 else x,
    "max": lambda x: x.max(), "min of axis 0": lambda x: x.min(0) if x.ndim else x,
    "divide by the size": lambda x: x / x.shape[0] if x.ndim else x,
    "times the size": lambda x: x * x.size / 8, "size": lambda x: jnp.float32(x.size),
    "root of the size": lambda x: x / x.size**0.5, "size less one": lambda x: x / (x.size + 1),
    "divide by four": lambda x: x / 4, "integer division": lambda x: x * (8 // max(x.size, 1)),
    "transpose": lambda x: x.T, "flat": _flat, "flat and back": _flat_back, "reverse": lambda x:
        x[::-1] if x.ndim else x, "reverse features": lambda x: x[..., ::-1] if x.ndim > 1 else x,
    "first": lambda x: x[0] if x.ndim else x, "all but the first": lambda x:
        x[1:] if x.ndim and x.shape[0] > 1 else x,
    "sort": lambda x: jnp.sort(x, 0) if x.ndim else x, "sort features": lambda x:
        jnp.sort(x, -1) if x.ndim > 1 else x,
    "cumsum": lambda x: _fit(jnp.cumsum(x, 0)) if x.ndim else x, "cumsum of features": lambda x:
        _fit(jnp.cumsum(x, -1)) if x.ndim > 1 else x,
    "roll": lambda x: jnp.roll(x, 1, 0) if x.ndim else x, "repeat": lambda x:
        jnp.repeat(x, 2, 0) if x.ndim else x, "weigh by position": lambda x:
        x * jnp.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)) / 4 if x.ndim else x,
    "ones like": lambda x: jnp.ones_like(x) * 2, "zeros like": jnp.zeros_like,
    "pairs": _pairwise, "halves": _halves, "twice": _twice, "contiguous": _contiguous,
    "two microbatches": _accumulate(2), "microbatches of one": lambda x: _accumulate(
        _matrix(x).shape[0])(x), "scan over examples": _by_example, "running": _running,
    "gradient": _gradient, "gradient of a sum": _gradient_of_sum, "by position": _positions,
    "embedding": _embedding, "loop": _loop, "loop of sums": _loop_of_sums, "data loop": _data_loop,
    "branch": _branch, "noise": _noise, "stop gradient": lax.stop_gradient,
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(x) * x), "barrier": lax.optimization_barrier,
    "mask": lambda x: x * (x > 0), "masked mean": lambda x: (x * (x > 0)).sum() / (
        1 + (x > 0).sum()), "norm": lambda x: jnp.sqrt(1 + (x * x).sum()),
    "standardize": lambda x: (x - x.mean(0)) / (1 + x.std(0)) if x.ndim else x,
    "prod": lambda x: jnp.prod(jnp.tanh(x), 0) if x.ndim else x,
    "count": lambda x: (x > 0).sum().astype(jnp.float32), "any": lambda x:
        jnp.any(x > 1).astype(jnp.float32), "floor": jnp.floor, "rounded sum": lambda x:
        jnp.floor(x.sum()), "reciprocal": lambda x: 1 / (2 + jnp.abs(x)),
    "top two": lambda x: lax.top_k(x, 2)[0] if x.ndim > 1 and x.shape[-1] > 1 else x,
    "quantile": lambda x: jnp.median(x, 0) if x.ndim else x,
    "pmean": lambda x: lax.pmean(x, AXIS), "psum": lambda x: lax.psum(x, AXIS) / 4,
    "pmean of mean": lambda x: lax.pmean(x.mean(0) if x.ndim else x, AXIS),
    "psum of sum": lambda x: lax.psum(x.sum(0) if x.ndim else x, AXIS),
    "psum of mean": lambda x: lax.psum(x.mean(), AXIS), "pmean of sum": lambda x:
        lax.pmean(x.sum(), AXIS), "pmax": lambda x: lax.pmax(x, AXIS), "pmax of max": lambda x:
        lax.pmax(x.max(0) if x.ndim else x, AXIS), "pmin of min": lambda x:
        lax.pmin(-x.max(), AXIS), "all_gather": _gathered, "all_gather tiled": lambda x:
        lax.all_gather(x, AXIS, tiled=True) if x.ndim else x,
    "psum of one": lambda x: x * lax.psum(1, AXIS) / 4, "axis size": lambda x:
        x / lax.axis_size(AXIS), "global size": lambda x: x.sum() / (
        x.size * lax.axis_size(AXIS)), "psum of size": lambda x: psum_of_size(x),
    "axis_index": lambda x: x + lax.axis_index(AXIS), "global position": lambda x: x + (
        jnp.arange(x.shape[0]) + lax.axis_index(AXIS) * x.shape[0]).astype(jnp.float32).reshape(
        -1, *[1] * (x.ndim - 1)) / 8 if x.ndim else x,
    "gradient through pmean": _gradient_through_pmean,
    "gradient through all_gather": _gradient_through_gather,
    "synced standardize": lambda x: (x - lax.pmean(x.mean(0), AXIS)) / jnp.sqrt(
        1 + lax.pmean((x * x).mean(0), AXIS)) if x.ndim else x,
    "centred by a global mean": lambda x: x - lax.pmean(x.mean(), AXIS),
}  # fmt: skip


def psum_of_size(x):
    return x / lax.psum(float(x.size), AXIS) * 8


BINARY = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: _fit(a * b),
    "maximum": jnp.maximum, "divide": lambda a, b: a / (2 + jnp.abs(b)), "select": lambda a, b:
        jnp.where(a > b, a, b), "divide by": lambda a, b: a / jnp.where(jnp.abs(b) < 0.5, 1, b),
    "concatenate": lambda a, b: jnp.concatenate([_matrix(a), _matrix(b)]), "features": lambda a, b:
        jnp.concatenate([_matrix(a), _matrix(b)], 1) if _matrix(a).shape == _matrix(b).shape else a,
    "matmul": lambda a, b: _fit(_matrix(a) @ _matrix(b).T), "contract": lambda a, b:
        _fit(_matrix(a).T @ _matrix(b)) if _matrix(a).shape == _matrix(b).shape else a,
    "conditional": lambda a, b: lax.cond(b.sum() > 0, lambda: a * 2, lambda: a),
    "scan": lambda a, b: lax.scan(lambda c, _: (c * 0.5 + b.mean(), None), a.sum(), None, 2)[0],
}  # fmt: skip


_UNARY_NAMES, _BINARY_NAMES = (st.sampled_from(sorted(each)) for each in (UNARY, BINARY))


@st.composite
def bodies(draw):
    """A body of (replicated w, sharded x, sharded y), as the names of its operations."""
    program = []
    for size in range(3, 3 + draw(st.integers(2, 7))):
        # Later values are drawn more often, so that operations come after each other.
        value = st.integers(0, size - 1) | st.just(size - 1) | st.just(size - 1)
        if draw(st.integers(0, 3)) == 0:
            program.append((draw(_BINARY_NAMES), draw(value), draw(value)))
        else:
            program.append((draw(_UNARY_NAMES), draw(value)))
    results = draw(st.lists(st.integers(3, 2 + len(program)), min_size=1, max_size=2))
    ending = draw(st.sampled_from(["as it is", "pmean", "psum of sums", "pmean of means"]))
    return tuple(program), tuple(results), ending


def body_of(drawn):
    program, results, ending = drawn
    end = {
        "as it is": lambda x: x,
        "pmean": lambda x: lax.pmean(x, AXIS),
        "psum of sums": lambda x: lax.psum(x.sum(), AXIS),
        "pmean of means": lambda x: lax.pmean(x.mean(), AXIS),
    }[ending]

    def body(w, x, y):
        values = [w, x, y]
        for name, *operands in program:
            known = [values[k] for k in operands]
            operation = UNARY[name] if len(known) == 1 else BINARY[name]
            try:
                values.append(operation(*known))
            except (TypeError, ValueError, ZeroDivisionError, IndexError):
                values.append(known[0])  # Shapes that do not fit.
        return tuple(end(values[k]) for k in results)

    return body


@functools.cache
def inputs(n, b, seed):
    r = np.random.RandomState(seed)
    shapes = [(D,), (n, b, D), (n, b)]
    return tuple(r.normal(size=shape).astype(np.float32) for shape in shapes)
