"""Changes to a file's text; all else stays to the byte.

``rewrite`` takes a file from its plans to its new bytes. ``editor`` collects the edits of the
forms; ``call_tokens`` finds the comments and parentheses that an AST does not have; ``host_reads``
changes ``x[0]`` on its way to the host; ``name_uses`` has the names of a file; ``imports`` drops
and adds imports; ``emitted_functions`` cuts the functions that a file is given, and ``file_head``
puts them at its top. ``edits`` and ``notebook_edits`` apply edits to a file or a notebook's cells.
"""
