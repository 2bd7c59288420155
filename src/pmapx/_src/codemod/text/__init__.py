"""The text of a file, as forms edit it.

``editor`` collects the edits of the forms, and ``outer_calls`` breaks the lines of the calls around
them. ``call_tokens`` finds the comments and parentheses that an AST does not have; ``name_uses``
has the names of a file, and ``name_counts`` how often a program names a function; ``imports`` drops
and adds imports; ``read_by_name`` tells which attributes code may read by names that it computes.
"""
