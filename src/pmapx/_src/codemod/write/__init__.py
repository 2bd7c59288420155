"""A file from its uses of pmap to its new text.

``plans`` picks a form for each use, or says why it is left; ``rewrite`` takes a file from its plans
to its new bytes; ``host_reads`` changes ``x[0]`` on its way to the host; ``file_head`` puts imports
and emitted functions at its top.
"""
