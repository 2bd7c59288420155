"""Arrays with a leading device axis, as pmapped functions take and return them.

- ``device_put``: create them: ``replicate``, ``shard_batch``, ``device_put_replicated``,
  ``device_put_sharded``; ``prefetch``, ahead of time from an iterator.
- ``local_shards``: read one shard on its device: ``unreplicate``, ``local_slice``, ``to_host``.
- ``stitch``: convert between host-local and global arrays.
"""
