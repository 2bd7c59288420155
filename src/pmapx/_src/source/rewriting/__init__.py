"""Edits of a file's text; all else stays to the byte.

``edits`` are new texts for stretches of a file; ``call_edits`` and ``import_edits`` make them for
calls and imports. ``notebook_edits`` applies them to the cells of a notebook, which
``notebook_cells`` writes. ``change`` shows a file before and after, ``atomic_write`` writes it.
"""
