"""Functions that a migrated file is given, as they are written into it.

``shards`` has the mapped body on one device's shard; ``placing`` puts shards on devices; ``rows``
maps with any options of ``jax.pmap``, and ``simple_rows``, ``nested_rows`` and ``process_rows``
have other versions of functions of ``rows`` for files that need less or more.
"""
