"""``pmapx migrate --to jit``: plain ``jax.jit`` over the global batch, where that is proven.

It starts from the global form, ``jax.jit`` of ``jax.shard_map``. ``conversion`` puts the rest
together. In the first run of the user's command,
``map_listener`` asks ``batch_parallel`` about every mapped body, ``collective_calls`` notes which
lines of the source call collectives, ``samples`` keeps inputs and outputs, random ones too, and
``costs`` what a call costs. ``decisions`` reads what was found for the maps that ``candidates``
finds in the source, ``shared_code`` refuses those whose code another use needs as it is.
``site_edits``, ``collective_edits``, ``axis_arguments`` and ``stacked`` write the others. In the
second run, ``jit_listener`` evaluates these on the same inputs, and ``agreement`` compares the
outputs. ``original_lines`` has the user's line numbers.
"""
