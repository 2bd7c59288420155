"""Checkpoints with and without the leading device axis of pmap's replicated state.

In the order in which a checkpoint goes through them: ``formats`` detects the format and opens the
file with ``npz_file``, ``pickle_file``, ``flax_msgpack`` or ``orbax_folder``; ``object_tree`` finds
leaves, ``leaf_paths`` names them; ``unstack`` and ``stack`` decide what happens to each with
``device_axis``, and ``conversion`` writes and reports, through ``new_path``. All use ``base``.
"""
