"""What a program's mapped functions took and returned, on disk.

``recording`` is the listener. It notes the leaves of a call (``call_record``, ``array_record``) and
identifies functions by their code. ``writer`` and ``reader`` are the two ends of
the files.
"""
