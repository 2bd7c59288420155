"""``pmapx migrate``: from pmap to shard_map, or to pmapx's own functions. Nothing read here is run.

Data goes through the packages in this order:

- ``migration`` reads the files below some paths and puts the rest together.
- ``decide`` finds the uses of pmap and decides what becomes of each.
- ``forms`` has what a use can become, a module a form; ``emitted`` the functions that the new texts
  call, as they are written into a file.
- ``write`` edits a file.
- ``report`` shows what was done.

Two ways beside: ``replicated`` takes the leading device axis off state that is equal on all
devices, before the rest; ``to_pmapx`` puts pmapx's functions in the place of JAX's and Flax's.
"""
