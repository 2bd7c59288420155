"""State that stays equal on all devices, written as what it is: replicated, without a row a device.

``watching`` runs inside the user's command and writes down, for each pmap, what its outputs vary
with and whether its arguments came in equal; ``evidence`` reads that, and what the user names.
``maps``, ``wrappers`` and ``definitions`` say which pmaps there are and what they map. ``flow``,
``body``, ``statements``, ``expressions``, ``calling`` and ``groups`` follow every stacked value
through the source, to all the places that make, pass and read it; ``passing`` finds functions that
code which is not seen may call; ``decisions`` says which values may lose the axis of devices, all
together or not at all; ``editing`` writes it, as a pmap with ``None`` among its axes, which the
rest of ``migrate`` turns into ``P()``. ``proving`` runs the command, and ``style`` puts these
together.
"""
