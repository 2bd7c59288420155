"""The click group that finds a command by the name of its file."""

import importlib
import pkgutil

import click

import pmapx
import pmapx.cli


class _CommandPerFile(click.Group):
    """``pmapx name`` is the function ``command`` in ``pmapx/cli/name.py``, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = pkgutil.iter_modules(pmapx.cli.__path__)
        return sorted(module.name for module in found if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"pmapx.cli.{cmd_name}").command
        return command


@click.group(cls=_CommandPerFile)
@click.version_option(pmapx.__version__, prog_name="pmapx")
def group() -> None:
    """Pmap for today's JAX, and the road from it to shard_map."""
