"""A two-dimensional Fourier transform: rows, an exchange of all with all, columns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def transposed(block, axis_name):
    """(rows here, columns) -> (columns here, rows)."""
    n = jax.lax.psum(1, axis_name)
    rows, columns = block.shape
    parts = block.reshape(rows, n, columns // n)
    swapped = jax.lax.all_to_all(parts, axis_name, split_axis=1, concat_axis=0, tiled=False)
    return swapped.reshape(n * rows, columns // n).T


@functools.partial(jax.pmap, axis_name="rows")
def fft2(block):
    block = jnp.fft.fft(block, axis=1)
    block = transposed(block, "rows")
    block = jnp.fft.fft(block, axis=1)
    return transposed(block, "rows")


@functools.partial(jax.pmap, axis_name="rows", static_broadcasted_argnums=(1,))
def low_pass(block, keep):
    size = block.shape[1]
    rows = block.shape[0] * jax.lax.axis_index("rows") + jnp.arange(block.shape[0])
    near = jnp.minimum(rows, size - rows)[:, None] + jnp.minimum(
        jnp.arange(size), size - jnp.arange(size)
    )
    kept = jnp.where(near <= keep, block, 0)
    power = jax.lax.psum(jnp.sum(jnp.abs(kept) ** 2), "rows")
    return kept, power


def main():
    n = jax.local_device_count()
    size = 2 * n
    image = np.random.RandomState(0).normal(size=(size, size)).astype(np.complex64)
    blocks = image.reshape(n, 2, size)
    spectrum = fft2(blocks)
    whole = np.asarray(spectrum).reshape(size, size)
    assert np.allclose(whole, np.fft.fft2(image), atol=1e-3)
    powers = [float(low_pass(spectrum, keep)[1][0]) for keep in (2, 4, size)]
    print("power", powers)
    return {"spectrum": whole, "powers": powers}


if __name__ == "__main__":
    main()
