"""One abstract interpreter of Python: what values may be, and where they go, without running.

``project`` finds the file of a module and ``module`` reads it with the ``interpreter``, but for
functions that have no ``relevance`` to what is looked for. A value is a set of ``values``;
``scopes`` hold them by name, with the ``definitions`` that reach each point. ``known_calls`` and
``known_names`` have the functions of JAX and others. All that is seen goes to ``facts``, which the
rules and ``migrate`` read; ``sites`` are the uses of pmap among them. ``syntax``
walks trees.
"""
