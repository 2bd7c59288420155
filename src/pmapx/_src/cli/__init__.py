"""The command line: ``pmapx COMMAND``. Each command is a file of its name in this folder."""

import sys

# What a shell says of a program that Ctrl-C ended.
_STOPPED = 130


def main() -> None:
    """Runs the command that the arguments name; all but ``info`` need ``pmapx[tools]``."""
    try:
        _main(sys.argv[1:])
    except KeyboardInterrupt:  # Before the group could take it: while that is imported.
        sys.exit(_STOPPED)


def _main(args: list[str]) -> None:
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        _without_click(args)
        return
    from pmapx._src.cli._group import group

    group(prog_name="pmapx")


def _without_click(args: list[str]) -> None:
    """What a bug report needs is there all the same."""
    from pmapx._src.cli._about import about, as_text

    if args != ["info"]:
        install = 'pip install "pmapx[tools]"'
        sys.exit(f"pmapx: the command line needs click: {install}; pmapx info works without")
    print(as_text(about()))
