"""A pmap as a partitioned program.

``axes`` resolves the user's axes and sizes into specs, with ``axis_names`` for the mesh;
``partitioning`` chooses the mesh and maps the ``mapped_body`` over it, through ``nesting`` for
pmaps inside, ``vmap_collectives`` for an axis larger than the number of devices, and
``auto_out_axes`` for ``AUTO``.
"""
