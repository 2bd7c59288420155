"""Pytrees of arguments.

``signature`` reads a call's arguments and passes them to a program, ``names`` describes them in
errors, ``checked_leaves`` checks those of array functions.
"""
