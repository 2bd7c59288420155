"""Statistics over groups of devices: pairs, halves, and everyone."""

import jax
import jax.numpy as jnp
import numpy as np


def groups_of(size):
    n = jax.local_device_count()
    return [list(range(start, start + size)) for start in range(0, n, size)]


def group_norm_step(x, size):
    groups = groups_of(size)
    mean = jax.lax.pmean(x.mean(0), "i", axis_index_groups=groups)
    square = jax.lax.pmean((x**2).mean(0), "i", axis_index_groups=groups)
    normed = (x - mean) * jax.lax.rsqrt(square - mean**2 + 1e-5)
    members = jax.lax.all_gather(jax.lax.axis_index("i"), "i", axis_index_groups=groups)
    return normed, mean, members


def two_level_sum(x):
    """Within pairs first, then across the first of each pair, as on hosts with fast links."""
    pair = jax.lax.psum(x, "i", axis_index_groups=groups_of(2))
    n = jax.local_device_count()
    across = [list(range(0, n, 2)), list(range(1, n, 2))]
    return jax.lax.psum(pair, "i", axis_index_groups=across), jax.lax.psum(x, "i")


step = jax.pmap(group_norm_step, axis_name="i", static_broadcasted_argnums=1)


def main():
    n = jax.local_device_count()
    x = np.random.RandomState(0).normal(size=(n, 5, 2)).astype(np.float32)
    x += np.arange(n, dtype=np.float32)[:, None, None]
    results = {}
    for size in (2, n // 2, n):
        normed, mean, members = step(x, size)
        results[f"groups of {size}"] = jax.tree.map(np.asarray, (normed, mean, members))
        print(size, np.asarray(mean)[:, 0])
    by_levels, at_once = jax.pmap(two_level_sum, "i")(x)
    assert jnp.allclose(by_levels, at_once, rtol=1e-5)
    results["levels"] = np.asarray(by_levels)
    return results


if __name__ == "__main__":
    main()
