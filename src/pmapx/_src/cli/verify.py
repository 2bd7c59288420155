"""``pmapx verify``: runs a program before and after migration, and compares the results."""

from __future__ import annotations

import json
import os

import click

from pmapx._src.cli._command_line import WithCommandLine, verify_options
from pmapx._src.cli._terminal import Progress, color_option, echo, exclude_option, next_step
from pmapx._src.cli._verification import after_verification, as_text
from pmapx._src.source.command_error import CommandError
from pmapx._src.verify.compare.tolerance import Tolerance
from pmapx._src.verify.verify import verify

# Shells complete directories for it.
DIRECTORY = click.Path(file_okay=False)


@click.command(
    "verify",
    cls=WithCommandLine,
    short_help="Run a program before and after migration, and compare all calls.",
)
@click.option("--before", required=True, type=DIRECTORY, metavar="DIR", help="The code with pmap.")
@click.option("--after", required=True, type=DIRECTORY, metavar="DIR", help="The migrated code.")
@verify_options
@exclude_option
@click.option(
    "--format",
    "layout",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@color_option
@click.pass_context
def command(
    ctx: click.Context,
    before: str,
    after: str,
    devices: int | None,
    rtol: float | None,
    atol: float | None,
    calls: int,
    timeout: float,
    strict: bool,
    exclude: tuple[str, ...],
    layout: str,
    color: bool | None,
) -> None:
    """Run a command on two versions of a program, and compare the calls of pmapped functions.

    The command runs once in each directory, with the same virtual devices and hash seed, the old
    version in legacy mode. The inputs and outputs of every function that was pmapped before, or
    uses shard_map now, are compared: bitwise equal, equal within a tolerance, or different, with
    the first call and leaf that differ, and by how much. In a multi-process program (pmapx run -n),
    each process is compared with its counterpart. Exits with 0 if all sites that ran are verified,
    1 if one is different, none ran, or one is unverified with --strict, 2 on an error.

    \b
    Examples:
      pmapx verify --before old --after new -- python train.py --steps 3
      pmapx verify --before old --after new --strict -- python -m lab.train
      pmapx verify --before old --after new -- pmapx run -n 2 train.py
      pmapx verify --before old --after new --rtol 0 --atol 0 -- python train.py
    """
    for directory in (before, after):
        if not os.path.isdir(directory):
            raise CommandError(f"no such directory: {directory}")
    if not ctx.obj:
        raise CommandError("pass the command to run after --, as in: -- python train.py --steps 3")
    with Progress("Running the program ({})") as progress:
        found = verify(
            ctx.obj,
            before,
            after,
            devices=devices,
            calls=calls,
            tolerance=Tolerance(rtol, atol),
            timeout=timeout,
            exclude=exclude,
            progress=progress.show,
        )
    if layout == "json":
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        echo(as_text(found, is_strict=strict), color)
        next_step(after_verification(found, is_strict=strict), color)
    ctx.exit(found.exit_code(is_strict=strict))
