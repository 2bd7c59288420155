"""The click group that finds a command by the name of its file, and says errors in one line."""

from __future__ import annotations

import difflib
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

# As a newcomer meets them; one that is not named here comes after.
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
        return sorted(names, key=lambda name: (_place(name), name))

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
        """Finds the command, or says which one may have been meant."""
        if args and args[0].isidentifier() and self.get_command(ctx, args[0]) is None:
            closest = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            meant = f". Did you mean {closest[0]!r}?" if closest else ""
            ctx.fail(f"No such command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each command's sentence whole, where click would cut it at the line's end."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=200)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command; an error is one line with a hint, and a traceback only if asked for."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except click.UsageError as error:
            if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
                error.show()
                sys.exit(2)
            path = error.ctx.command_path if error.ctx is not None else "pmapx"
            _end(f"{_sentence(error.format_message())} {path} --help says more", error.exit_code)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _end("stopped", 130)
        except Exception as error:
            if _wants_traceback():
                traceback.print_exc()
                sys.exit(1)
            _end(f"{_in_one_line(error)} (PMAPX_TRACEBACK=1 shows where)", 1)
        sys.exit(status if isinstance(status, int) else 0)


def _needing(name: str, library: str) -> click.Command:
    """A command in the place of one that cannot be imported; it says why."""
    message = f'{name} needs {library}: pip install "pmapx[tools]"'

    def fail(**_: object) -> None:
        raise click.ClickException(message)

    takes_all = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, short_help=f"{message}.", callback=fail, context_settings=takes_all)


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _sentence(message: str) -> str:
    """What click says of a wrong use, in one line and in words, ready for another clause."""
    words = re.sub(r"a valid (?:float|integer) range", "a number", " ".join(message.split()))
    return words if words.endswith(("?", "?)")) else f"{words.rstrip('.')};"


def _end(message: str, status: int) -> NoReturn:
    click.echo(f"pmapx: {message}", err=True)
    sys.exit(status)


def _in_one_line(error: Exception) -> str:
    words = "; ".join(filter(None, (line.strip() for line in str(error).splitlines())))
    kind = type(error).__name__
    return (
        words if words and isinstance(error, OSError) else f"{kind}: {words or 'no more is known'}"
    )


def _wants_traceback() -> bool:
    return os.environ.get("PMAPX_TRACEBACK", "") not in ("", "0")


def _ask_for_traceback(ctx: click.Context, param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        os.environ["PMAPX_TRACEBACK"] = "1"


@click.group(
    cls=_CommandPerFile,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nA first look at a codebase:\n"
    "  pmapx run train.py              runs it as it is, on today's JAX\n"
    "  pmapx check .                   lists what to change\n"
    "  pmapx migrate train.py          shows the change\n\n"
    "pmapx COMMAND --help has examples of each.",
)
@click.version_option(pmapx.__version__, prog_name="pmapx")
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    callback=_ask_for_traceback,
    help="Show where an error came from; so does PMAPX_TRACEBACK=1.",
)
def group() -> None:
    """Run code that was written for pmap on today's JAX, and move it to shard_map."""
