"""Which results of a pmapped function may differ between devices, from its source alone.

The body is read with its arguments varying or equal on all devices: ``values`` are what a name may
hold and why it varies, ``scopes`` are names, ``expressions``, ``calls`` and ``bodies`` read a
function, ``known_calls`` is what JAX's own functions do with it, and ``differing`` are functions
that may ask for the device's index. ``proof`` asks it of a pmap; ``processes`` tells which values
outside of pmaps may differ between processes: what each has (``own_values``) and ``changes``.
``moving`` reads functions that only move the leaves of a tree: what varies is the tree, and a
computation with it ends the reading.

Scopes, imports, the matching of arguments, and what names and attributes of the program around hold
are those of the analysis. Its values are not: they are what something may be, with nothing of what
is not understood. A proof needs all that something may be, on the paths that the body takes, with
the objects that names share. Whatever is not understood here varies.
"""
