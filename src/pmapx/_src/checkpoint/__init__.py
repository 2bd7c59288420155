"""Checkpoints with and without the leading device axis of pmap's replicated state.

``conversion`` detects the format and opens the file with ``npz_file``, ``pickle_file``,
``flax_msgpack`` or ``orbax_folder``; ``object_tree`` finds leaves and names them. Each is unstacked
or stacked with ``device_axis``, and written through ``new_path``. All use ``base``.
"""
