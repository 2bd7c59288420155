"""Whether a mapped body equals a plain jitted function over the global batch, by its jaxpr.

``kinds`` describes how a device's value relates to the value over the global batch; ``traces``
pairs the body's jaxpr with that of the global batch; ``steps`` pairs their equations. The rules, by
primitive: ``arithmetic``, ``shapes``, ``reductions``, ``indexing``, ``collectives``.
``interpreter`` applies them, and ``loops`` those of control flow. ``verdict`` is the result,
``global_function`` runs it.
"""
