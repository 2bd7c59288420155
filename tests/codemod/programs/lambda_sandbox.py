"""A tour of the collectives with maps made and called on the spot, as people try things out."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def same_on_all(x):
    """Asserts that rows are equal, and gives the first."""
    rows = np.asarray(x)
    assert (rows == rows[0]).all()
    return rows[0]


def stack_copies(tree, n):
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *jnp.shape(leaf))), tree)


def main():
    n = jax.local_device_count()
    x = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    out = {}
    out["psum"] = same_on_all(jax.pmap(lambda v: lax.psum(v, "i"), axis_name="i")(x))
    out["pmean"] = same_on_all(jax.pmap(lambda v: lax.pmean(v, "i"), "i")(x))
    out["index"] = jax.pmap(lambda v: v[0] * 0 + lax.axis_index("i"), axis_name="i")(x)
    out["gather"] = same_on_all(jax.pmap(lambda v: lax.all_gather(v, "i"), axis_name="i")(x))
    out["shuffled"] = jax.pmap(
        lambda v: lax.pshuffle(v, "i", list(reversed(range(n)))), axis_name="i"
    )(x)
    out["scattered"] = jax.pmap(lambda v: lax.psum_scatter(v, "i"), axis_name="i")(
        np.tile(np.arange(n, dtype=np.float32), (n, 1))
    )
    out["exchanged"] = jax.pmap(lambda v: lax.all_to_all(v, "i", 0, 0), axis_name="i")(
        np.arange(n * n).reshape(n, n)
    )
    out["two outputs"] = jax.pmap(lambda a, b: (a + b, {"difference": a - b}))(x, x[::-1])
    out["closure"] = [jax.pmap(lambda v, k=k: v * k)(x) for k in range(2)]
    out["jnp"] = jax.pmap(jnp.linalg.norm)(x)
    out["of vmap"] = jax.pmap(jax.vmap(lambda v: v**2))(x)
    out["of jit"] = jax.pmap(jax.jit(jnp.cumsum))(x)
    out["of grad"] = jax.pmap(jax.grad(lambda v: jnp.sum(v**3)))(x)
    copies = stack_copies({"a": 1.0, "b": np.ones(2, np.float32)}, n)
    out["copies"] = jax.pmap(lambda t, v: t["a"] + t["b"] * v)(copies, x)
    out["half"] = jax.pmap(lambda v: lax.psum(v, "i"), axis_name="i")(x[: n // 2])
    print({name: np.shape(jax.tree.leaves(value)[0]) for name, value in out.items()})
    return jax.tree.map(np.asarray, out)


if __name__ == "__main__":
    main()
