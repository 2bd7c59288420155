"""Functions compiled ahead of time for a target topology, and what they cost there."""
