"""Which values are equal on all devices, by their jaxpr: for the pmap, the audit and the codemod.

``jaxprs`` reads equations, ``source_locations`` finds their lines; ``shard_map_body`` analyzes the
body of one ``shard_map`` and ``traced_program`` the program around it, with others inside.
``array_shardings`` compares the shards of concrete arrays.
"""
