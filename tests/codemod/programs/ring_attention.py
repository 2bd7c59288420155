"""Attention over a sequence that is cut over the devices: keys and values go round a ring."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def block(q, k, v, mask):
    scores = jnp.einsum("qd,kd->qk", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(mask, scores, -1e9)
    top = scores.max(-1)
    weights = jnp.exp(scores - top[:, None])
    return weights @ v, weights.sum(-1), top


@functools.partial(jax.pmap, axis_name="ring", static_broadcasted_argnums=(3,))
def ring_attention(q, k, v, is_causal):
    size = lax.psum(1, "ring")
    me = lax.axis_index("ring")
    length = q.shape[0]
    positions = jnp.arange(length)
    forward = [(i, (i + 1) % size) for i in range(size)]

    def one(carry, turn):
        out, norm, top, k, v = carry
        source = (me - turn) % size
        if is_causal:
            mask = (me * length + positions)[:, None] >= (source * length + positions)[None]
        else:
            mask = jnp.ones((length, length), bool)
        new_out, new_norm, new_top = block(q, k, v, mask)
        both = jnp.maximum(top, new_top)
        old, new = jnp.exp(top - both), jnp.exp(new_top - both)
        out = out * old[:, None] + new_out * new[:, None]
        norm = norm * old + new_norm * new
        k, v = lax.ppermute((k, v), "ring", perm=forward)
        return (out, norm, both, k, v), None

    init = (jnp.zeros_like(q), jnp.zeros(length), jnp.full(length, -1e9), k, v)
    (out, norm, _, _, _), _ = lax.scan(one, init, jnp.arange(size))
    return out / norm[:, None]


def reference(q, k, v, is_causal):
    q, k, v = (x.reshape(-1, x.shape[-1]) for x in (q, k, v))
    mask = np.tril(np.ones((len(q), len(q)), bool)) if is_causal else True
    scores = np.where(mask, q @ k.T / np.sqrt(q.shape[-1]), -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


def main():
    n = jax.local_device_count()
    rng = np.random.RandomState(0)
    q, k, v = rng.normal(size=(3, n, 4, 6)).astype(np.float32)
    results = {}
    for is_causal in (False, True):
        out = np.asarray(ring_attention(q, k, v, is_causal)).reshape(-1, 6)
        error = np.abs(out - reference(q, k, v, is_causal)).max()
        print(f"causal={is_causal}: off by {error:.1e}")
        assert error < 1e-5
        results[f"causal={is_causal}"] = out
    return results


if __name__ == "__main__":
    main()
