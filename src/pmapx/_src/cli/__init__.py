"""The command line. ``pmapx NAME`` is the function ``command`` in ``NAME.py``.

``_group`` finds commands and reports errors in one line; ``_terminal`` has colors and progress;
``_command_line`` the options of commands that run a program; ``_migration`` what ``migrate`` does
before it rewrites; ``_about`` the text of ``info``.
"""

import sys


def main() -> None:
    """Runs a command; all but ``info`` need ``pmapx[tools]``."""
    try:
        _main(sys.argv[1:])
    except KeyboardInterrupt:  # While the group is imported; later, the group handles it.
        sys.exit(130)


def _main(args: list[str]) -> None:
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        _without_click(args)
        return
    from pmapx._src.cli._group import group

    group(prog_name="pmapx")


def _without_click(args: list[str]) -> None:
    """``info`` works without click, for bug reports."""
    from pmapx._src.cli._about import about, as_text

    if args != ["info"]:
        install = 'pip install "pmapx[tools]"'
        sys.exit(f"pmapx: the command line needs click: {install}; pmapx info works without it")
    print(as_text(about()))
