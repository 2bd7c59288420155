"""The implementation, one package per concern; ``pmapx/__init__.py`` lists the public names."""
