"""What the cases share: all rows, those of this process, and how results are compared."""

import jax
import numpy as np

HERE = jax.process_index()
PROCESSES = jax.process_count()
LOCAL = jax.local_device_count()
TOTAL = jax.device_count()
ALL = np.arange(3.0 * TOTAL, dtype=np.float32).reshape(TOTAL, 3) + 1
OWN = slice(HERE * LOCAL, (HERE + 1) * LOCAL)
MINE = ALL[OWN]


def assert_rows(result, wanted):
    """Equal in shape and values, as a host-local array on this process's devices."""
    assert isinstance(result, jax.Array)
    assert result.is_fully_addressable
    assert isinstance(result.sharding, jax.sharding.NamedSharding)
    assert {device.process_index for device in result.devices()} == {HERE}
    assert result.shape == np.shape(wanted)
    np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-6)


def pointers(x):
    return [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]
