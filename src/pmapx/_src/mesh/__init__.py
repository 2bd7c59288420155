"""Devices and meshes.

``device_mesh`` chooses devices and makes the mesh; ``process_shards`` divides it among processes;
``partition_specs`` lists the axes in specs; ``context_mesh`` and ``enclosing_jit`` read what
surrounds a call; ``trace_context`` keys traces by it; ``resharding`` transfers inputs.
"""
