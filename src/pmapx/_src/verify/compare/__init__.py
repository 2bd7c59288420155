"""Two recorded runs, compared.

``match_processes`` and ``match_functions`` pair what corresponds, ``compare_calls`` compares the
calls of a function and ``compare_arrays`` two leaves, within a tolerance. ``summary`` makes a
``result`` of all of it, in which those of several processes are merged.
"""
