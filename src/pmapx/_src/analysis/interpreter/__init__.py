"""The interpreter: one module for each kind of node.

``frame`` has the core: ``execute``, ``evaluate`` and ``call`` hand each node to its reader in
``statements``, ``expressions`` or ``calls``. These use ``assignment`` and ``indexing`` (what
targets and indices do), ``lookup`` (what names and attributes hold), ``functions`` (bodies that are
called) and ``mixed_devices`` (results that meet an array on one device).
"""
