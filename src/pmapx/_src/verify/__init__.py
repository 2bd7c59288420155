"""Verification that migrated code does the same: the user's command runs on both versions.

``verify`` runs the command twice with a listener in it (``record``), and compares what
the two runs recorded (``compare``). ``uses`` finds the uses of pmap that should be verified,
and ``limits`` bounds it all.
"""
