"""Other people's code: which files there are, and how they are read and written.

Reading: ``settings`` and ``discovery`` choose the files; ``prefilter`` and ``name_search`` look at
their bytes, and ``batches`` and ``parallel`` share the work; ``files`` makes trees, with
``notebooks`` for notebooks and ``excerpts`` for the part of a file that can matter; ``location``
and ``suppressions`` describe places in them. ``gc_paused`` makes all of it faster.

Writing: ``edits`` replaces text at places; ``import_edits`` and ``call_edits`` make edits, and
``notebook_edits`` and ``notebook_cells`` apply them to notebooks; ``change`` is a file before and
after, which ``atomic_write`` writes.
"""
