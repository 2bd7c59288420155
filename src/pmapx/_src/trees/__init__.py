"""Pytrees of arguments.

``signature`` reads a call's arguments, ``flat_arguments`` passes them to a program, ``names``
describes them in errors, ``checked_leaves`` checks those of array functions.
"""
