"""Functions that a migrated file is given, as they are written into it.

``placing`` puts shards on devices; ``device_map`` maps with any options of ``jax.pmap``, with
``shards``; ``nested_map`` and ``process_map`` have other versions of its functions for files that
need more, ``leading_map`` and ``leading_process_map`` for those that need only leading device axes;
``static_process_map`` adds static arguments.
``functions`` has their texts.
"""
