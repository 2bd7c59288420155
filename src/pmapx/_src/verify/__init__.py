"""Proof that migrated code does what it did: the user's command, run on both versions.

``verifying`` is where to start. ``running`` starts the command with ``watching`` inside, which
records what every map took and gave (``functions``, ``leaves``, ``recording``). ``records`` reads
that again, ``matching`` finds the same function in both versions, ``comparing`` and ``judging``
compare its calls, and ``summing_up`` and ``result`` say what came of it.
``uses`` finds what ought to be verified; ``trees`` and ``migrated`` make copies to run in.
"""
