"""Options of commands that run the user's command, which follows ``--``."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from pmapx._src import errors
from pmapx._src.audit.topology import names
from pmapx._src.source.command_error import CommandError
from pmapx._src.verify.limits import CALLS, TIMEOUT

F = TypeVar("F", bound=Callable[..., Any])


class WithCommandLine(click.Command):
    """A command whose own arguments end at ``--``; the rest is ``ctx.obj``, None without ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            end = args.index("--")
            args, ctx.obj = args[:end], tuple(args[end + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND]"]


def checked_topology(name: str | None) -> str | None:
    """Returns the canonical name of a target topology; fails if it cannot be compiled for."""
    if name is None:
        return None
    with _as_command_error():
        found = names.parse(name)
        # Libtpu knows more about shapes than their names show.
        if found.family != "cpu":
            from pmapx._src.audit.topology.devices import check  # Imports JAX.

            check(found)
    return found.name


def checked_topologies(listed: str) -> tuple[str, ...]:
    """Returns the canonical names of the topologies of a scaling table, checked."""
    with _as_command_error():
        found = names.several(listed)
    for name in found:
        checked_topology(name)
    return tuple(found)


@contextlib.contextmanager
def _as_command_error() -> Iterator[None]:
    try:
        yield
    except (errors.PmapxError, ValueError) as error:
        message = " ".join(str(error).partition("\n  code:")[0].split())
        raise CommandError(message) from None


def options(*several: Callable[[Any], Any]) -> Callable[[F], F]:
    """Returns a decorator that adds several options to a command."""

    def add(function: F) -> F:
        for option in reversed(several):
            function = option(function)
        return function

    return add


devices_option = click.option(
    "--devices",
    type=click.IntRange(1),
    metavar="N",
    help="Virtual CPU devices; by default 8 if there is no accelerator.",
)
# For running and comparing two versions of a program.
verify_options = options(
    devices_option,
    click.option(
        "--rtol",
        type=click.FloatRange(0),
        metavar="X",
        help="Relative tolerance; chosen by dtype by default.",
    ),
    click.option(
        "--atol",
        type=click.FloatRange(0),
        metavar="X",
        help="Absolute tolerance; chosen by dtype by default.",
    ),
    click.option(
        "--calls",
        type=click.IntRange(1),
        default=CALLS,
        show_default=True,
        metavar="N",
        help="Calls of each function to record; further calls are only counted.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="Stop a run after this time.",
    ),
    click.option("--strict", is_flag=True, help="Fail if a site is unverified."),
)
