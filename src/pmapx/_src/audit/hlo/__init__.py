"""Compiled programs: ``parser`` reads their text, ``collectives`` finds what they send, and
``dataflow`` follows values from arguments to collectives.
"""
