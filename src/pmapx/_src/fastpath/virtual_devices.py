"""Virtual CPU devices in addition to those that JAX has."""

import jax

from pmapx._src.fastpath import jax_src


def more_cpu_devices(count: int) -> tuple[jax.Device, ...] | None:
    """Returns virtual CPU devices in addition to JAX's; None when only JAX can make them.

    They belong to their own client, which lives as long as they do.
    """
    make = getattr(jax_src.native, "get_tfrt_cpu_client", None)
    if make is None or "num_devices" not in (make.__doc__ or ""):
        return None
    try:
        return tuple(make(asynchronous=True, num_devices=count).devices())
    except (AttributeError, TypeError):  # A release that makes them in another way.
        return None
