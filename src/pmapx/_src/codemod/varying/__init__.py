"""Which results of a pmapped function may differ between devices, from its source alone.

The body is read with its arguments varying or equal on all devices: ``values`` are what a name may
hold and why it varies, ``scopes`` are names, ``bodies`` are statements, ``expressions`` and
``calls`` are what these compute, ``known_calls`` is what JAX's own functions do with it, and
``differing`` are functions that may ask for the device's index. ``proof`` asks it of a pmap.
Whatever is not understood varies.
"""
