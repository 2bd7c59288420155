"""State that stays equal on all devices, written as replicated, without the leading device axis.

``maps``, with ``wrappers`` and ``mapped_functions``, are the pmaps of the program. ``stacked_flow``
follows every stacked value by the bindings and calls that the analysis recorded: ``stacked_values``
and ``stacked_calls`` are what each use does with it, with ``copies``, ``one_liners`` and
``keywords`` for those that change. Places that a value passes through hold together in ``groups``;
``unseen_callers`` finds those that other code may reach. ``decisions`` chooses the groups that lose
the axis, ``restored`` finds what a checkpoint put on one device, and ``editing`` writes it, as a
pmap with ``None`` among its axes, which the rest of ``migrate`` turns into ``P()``; ``array_twins``
finds what it must copy. ``style`` is all of it.
"""
