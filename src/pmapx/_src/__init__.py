"""The implementation, in rooms by concern; what is public is named in ``pmapx/__init__.py``."""
