"""Arguments and results that keep a leading device axis, ``(n, b, ...)``, in a jitted function.

``unstacked_body`` is the mapped body without that axis, which a verdict is asked for.
``stacked_edits`` merges and splits the axis where the global form takes ``x[0]`` and ``x[None]``.
"""
