"""``pmapx check``: from paths to findings, and their fixes.

``check`` finds the files below the paths and sets those aside that no rule can fire in, by the
names of ``searched_names``; ``worker`` reads the others and runs the ``rules`` on what the analysis
recorded. A rule finds uses with ``references``, makes a ``finding`` of each, and a fix for it, for
which ``renames`` has the common cases. ``baseline`` takes out what was known before, ``fixing``
applies fixes, and ``formats`` prints a report.
"""
