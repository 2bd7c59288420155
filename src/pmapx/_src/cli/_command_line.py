"""What commands share that run a command of the user's, given after ``--``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pmapx._src.verify.limits import CALLS, TIMEOUT

F = TypeVar("F", bound=Callable[..., Any])


class WithCommandLine(click.Command):
    """A command whose own arguments end at ``--``; the rest is ``ctx.obj``, None without ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses what is before ``--``."""
        if "--" in args:
            cut = args.index("--")
            args, ctx.obj = args[:cut], tuple(args[cut + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Adds the command line to the usage."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND]"]


def verify_options(function: F) -> F:
    """Adds the options on how two runs are made and compared."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--devices",
        type=click.IntRange(1),
        metavar="N",
        help="Virtual CPU devices; 8 where there is nothing but a CPU.",
    ),
    click.option(
        "--rtol",
        type=click.FloatRange(0),
        metavar="X",
        help="Relative tolerance; by type unless told.",
    ),
    click.option(
        "--atol",
        type=click.FloatRange(0),
        metavar="X",
        help="Absolute tolerance; by type unless told.",
    ),
    click.option(
        "--calls",
        type=click.IntRange(1),
        default=CALLS,
        show_default=True,
        metavar="N",
        help="Calls of each function that are recorded; the rest are counted.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="When a run is stopped.",
    ),
    click.option("--strict", is_flag=True, help="Let no site be unverified."),
)
