"""The arguments of a call as pytrees, and their names in messages."""
