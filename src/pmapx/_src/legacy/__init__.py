"""Legacy mode: code written for the original pmap runs unchanged on today's JAX.

- ``bootstrap``: ``pmapx run``: installs, then runs the program in the same process.
- ``installation``: ``install()`` and ``uninstall()``.
- ``patches``: sets attributes and undoes it, and calls back after an import.
- ``pmap_and_flax``: replaces ``jax.pmap``, ``jax.device_put_*`` and Flax's functions with pmapx's.
- ``pmap_sharding_and_flags``: accepts ``PmapSharding`` and flags that no longer have an effect.
- ``renamed_names``: the table of names that JAX removed or renamed; ``removed_functions``: the
  implementations of those without an equivalent today.
- ``array_operators``: ``x[i]`` without communication, and arithmetic between pmap outputs and
  arrays on one device.
"""

from pmapx._src.legacy.installation import Installation, install, uninstall

__all__ = ["Installation", "install", "uninstall"]
