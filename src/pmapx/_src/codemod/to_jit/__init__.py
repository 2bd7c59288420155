"""``pmapx migrate --to jit``: plain ``jax.jit`` over the global batch, where that is proven.

It starts from the global form, ``jax.jit`` of ``jax.shard_map``. ``conversion`` puts the rest
together. ``runs`` runs the user's command on one version of the code. In the first run,
``map_listener`` asks ``batch_parallel`` about every mapped body, ``collective_calls`` notes which
lines of the source call collectives, and ``samples`` keeps inputs and outputs, with random ones
from ``drawn_inputs``. ``decisions`` reads what was found, ``candidates`` finds the maps in the
source, ``site_edits`` and ``collective_edits`` write them as jitted functions. In the second run,
``jit_listener`` evaluates these on the same inputs, and ``agreement`` compares the outputs.
"""
