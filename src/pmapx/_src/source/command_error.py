"""The error that ends a command."""


class CommandError(Exception):
    """A command cannot do what was asked; the command line prints the message, one line."""
