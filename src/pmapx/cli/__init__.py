"""The command line: ``pmapx COMMAND``. Each command is a file of its name in this folder."""

import sys

# What a shell says of a program that Ctrl-C ended.
_STOPPED = 130


def main() -> None:
    """Runs the command that the arguments name; needs the extra ``pmapx[tools]``."""
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit('pmapx: the command line needs click: pip install "pmapx[tools]"')
    except KeyboardInterrupt:
        sys.exit(_STOPPED)
    try:
        from pmapx.cli._group import group

        group(prog_name="pmapx")
    except KeyboardInterrupt:  # Before the group could: while it is imported.
        sys.exit(_STOPPED)
