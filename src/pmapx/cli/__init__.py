"""The command line: ``pmapx COMMAND``. Each command is a file of its name in this folder."""

import sys


def main() -> None:
    """Runs the command that the arguments name; needs the extra ``pmapx[tools]``."""
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        sys.exit('pmapx: the command line needs click: pip install "pmapx[tools]"')
    from pmapx.cli._group import group

    group(prog_name="pmapx")
