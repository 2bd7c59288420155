"""A file to migrate, and ``pmapx migrate`` as users run it."""

from click.testing import CliRunner


def written(folder, text):
    """Write a program; its path."""
    path = folder / "train.py"
    path.write_text(text)
    return path


def migrate(*arguments):
    """Run the command; what it printed, and its status."""
    from pmapx._src.cli._group import group

    return CliRunner().invoke(group, ["migrate", *map(str, arguments)])
