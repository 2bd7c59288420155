"""Edits of files."""
