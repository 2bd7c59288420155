"""The calls of two versions of a program, compared."""
