"""The error that ends a command, and why a file cannot be read or written."""


class CommandError(Exception):
    """A command cannot do what was asked; the command line prints the message, one line."""


def reason(error: OSError) -> str:
    """Returns why a file cannot be read or written, in a few words."""
    return (error.strerror or str(error) or type(error).__name__).lower()
