"""Checkpoints with and without the leading device axis of pmap's replicated state.

In the order in which a checkpoint goes through them: ``formats`` detects the format and opens the
file with ``npz_file``, ``pickle_file``, ``flax_msgpack`` or ``orbax_folder``; ``object_tree`` finds
leaves, ``leaf_paths`` names them; ``conversion`` unstacks or stacks each with ``device_axis``, and
writes through ``new_path``. All use ``base``.
"""
