"""The audit of a program while it runs."""
