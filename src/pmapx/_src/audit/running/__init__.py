"""The audit of a program while it runs.

``request`` carries the options of the command to the program, where ``listener`` receives its calls
and ``audited_calls`` counts those of one function and audits each signature; ``merge_reports``
merges what the processes found. ``built`` audits a function that is built without a program.
"""
