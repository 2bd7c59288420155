"""The click group that finds a command by the name of its file, and reports errors in one line."""

import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import pmapx
import pmapx._src.cli
from pmapx._src.cli._terminal import wants_traceback
from pmapx._src.source.command_error import CommandError

# In the order in which a newcomer needs them; other commands follow.
_ORDER = (
    "run",
    "check",
    "migrate",
    "verify",
    "checkpoint",
    "audit",
    "explain",
    "info",
    "completion",
)


class _CommandPerFile(click.Group):
    """``pmapx name`` is the function ``command`` in ``cli/name.py``, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = pkgutil.iter_modules(pmapx._src.cli.__path__)
        names = (module.name for module in found if not module.name.startswith("_"))
        place = {name: index for index, name in enumerate(_ORDER)}
        return sorted(names, key=lambda name: (place.get(name, len(_ORDER)), name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        try:
            command: click.Command = importlib.import_module(f"pmapx._src.cli.{cmd_name}").command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("pmapx"):
                raise
            return _needing(cmd_name, str(error.name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, or suggests a similar one."""
        if args and args[0].isidentifier() and self.get_command(ctx, args[0]) is None:
            # It takes longer to import than a name that is right to look up.
            import difflib

            closest = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            meant = f". Did you mean {closest[0]!r}?" if closest else ""
            ctx.fail(f"No such command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Wraps the help of each command, which click would truncate to one line."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(n, each.get_short_help_str(limit=200)) for n, each in found if each]
            )

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command; reports an error in one line, with a traceback only on request."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except click.UsageError as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
                error.show()
                sys.exit(2)
            path = error.ctx.command_path if error.ctx is not None else "pmapx"
            _end(f"{_sentence(error.format_message())} see {path} --help", error.exit_code)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except CommandError as error:
            _end(str(error), 2)
        except (click.Abort, KeyboardInterrupt):
            _end(
                "interrupted; no file was left half-written, so you can run the command again", 130
            )
        except Exception as error:
            if wants_traceback():
                traceback.print_exc()
                sys.exit(1)
            _end(f"{_in_one_line(error)} (set PMAPX_TRACEBACK=1 for a traceback)", 1)
        sys.exit(status if isinstance(status, int) else 0)


def _needing(name: str, library: str) -> click.Command:
    """Returns a stand-in for a command that cannot be imported; it reports the reason."""
    message = f'{name} needs {library}: pip install "pmapx[tools]"'

    def fail(**_: object) -> None:
        raise click.ClickException(message)

    takes_all = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, short_help=f"{message}.", callback=fail, context_settings=takes_all)


def _sentence(message: str) -> str:
    """Returns click's message on one line, ready for another clause."""
    words = re.sub(r"a valid (?:float|integer) range", "a number", " ".join(message.split()))
    return words if words.endswith(("?", "?)")) else f"{words.rstrip('.')};"


def _end(message: str, status: int) -> NoReturn:
    click.echo(f"pmapx: {message}", err=True)
    sys.exit(status)


def _in_one_line(error: Exception) -> str:
    words = "; ".join(filter(None, (line.strip() for line in str(error).splitlines())))
    kind = type(error).__name__
    return words if words and isinstance(error, OSError) else f"{kind}: {words or 'no message'}"


def _ask_for_traceback(ctx: click.Context, param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        os.environ["PMAPX_TRACEBACK"] = "1"


@click.group(
    cls=_CommandPerFile,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nFirst steps:\n"
    "  pmapx run train.py              run it unchanged on today's JAX\n"
    "  pmapx check .                   list what to change\n"
    "  pmapx migrate train.py          show the migrated code\n\n"
    "See pmapx COMMAND --help for examples.",
)
@click.version_option(pmapx.__version__, prog_name="pmapx")
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    callback=_ask_for_traceback,
    help="Show the traceback of an error, as PMAPX_TRACEBACK=1 does.",
)
def group() -> None:
    """Run code written for pmap on today's JAX, and migrate it to shard_map."""
