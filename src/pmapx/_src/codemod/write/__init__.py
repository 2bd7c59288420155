"""The text of a migrated file."""
