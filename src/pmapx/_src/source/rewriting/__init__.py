"""Edits of a file's text; the rest stays byte for byte.

``edits`` are new texts for spans of a file; ``call_edits`` and ``import_edits`` make them for
calls and imports, ``added_imports`` for new imports and functions at the top. ``notebook_edits``
applies them to the cells of a notebook. ``change`` shows a file before and after, ``atomic_write``
writes it.
"""
