"""Source code of users: which files there are, and how they are read.

``discovery`` lists the files below the user's paths; ``prefilter`` skips those without any name
that matters, which ``name_search`` finds in their bytes, and divides the others into shares, which
``parallel`` reads in several processes, with ``gc_paused``; ``files`` reads a file, ``notebooks``
as Python. ``location`` has places in a file, ``suppressions`` its noqa comments. ``rewriting`` has
edits, ``command_error`` what ends a command.
"""
