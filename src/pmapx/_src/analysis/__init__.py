"""One abstract interpreter of Python: what values may be, and where they go, without running.

``project`` finds the file of a module and ``module`` reads it. ``interpreter`` has the core:
``execute``, ``evaluate`` and ``call`` hand each node to its reader in ``statements``,
``expressions`` or ``calls``. These stand on ``assignment`` and ``indexing`` (what targets and
indices do), ``lookup`` (what names and attributes hold), ``functions`` (bodies that are called),
``known_calls`` with ``known_names`` and ``mixed_devices`` (functions of JAX and others). A value is
a set of ``values``; ``scopes`` hold them by name, with the ``definitions`` that reach each point.
All that is seen goes to ``facts``, which the rules and ``migrate`` read.
"""
