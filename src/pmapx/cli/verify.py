"""``pmapx verify``: migrated code does what it did, shown by running it."""

from __future__ import annotations

import json
import os

import click

from pmapx.cli._terminal import Seconds, colour, fail
from pmapx.migrate.verify import CannotRunError, Tolerance, verify
from pmapx.migrate.verify.running import CALLS, TIMEOUT
from pmapx.migrate.verify.showing import as_text


@click.command("verify", context_settings={"allow_interspersed_args": False})
@click.option(
    "--before", required=True, type=click.Path(), metavar="DIR", help="The code with pmap."
)
@click.option("--after", required=True, type=click.Path(), metavar="DIR", help="The migrated code.")
@click.option(
    "--devices",
    type=click.IntRange(1),
    metavar="N",
    help="Virtual CPU devices; 8 where there is nothing but a CPU.",
)
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance; by type unless told.")
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance; by type unless told.")
@click.option(
    "--calls",
    type=click.IntRange(1),
    default=CALLS,
    show_default=True,
    metavar="N",
    help="Calls of each function that are recorded; the rest are counted.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="When a run is stopped.",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a site is unverified.")
@click.option(
    "--format", "layout", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option("--color/--no-color", default=None, help="Colours; on terminals unless told.")
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND")
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
    exclude: tuple[str, ...],
    strict: bool,
    layout: str,
    color: bool | None,
    command_line: tuple[str, ...],
) -> None:
    """Run COMMAND on two versions of a program, and compare what its maps took and gave.

    It runs once in each folder, with the same virtual devices and hash seed, the version before in
    the legacy mode. Every call of a function that was pmapped before, or is a shard_map now, is
    compared: equal to the bit, equal within a tolerance, or different, with the first call and leaf
    that differ and by how much. Exits with 0 if all that was reached is verified, 1 if something is
    different or nothing was reached, 2 on an error.

    \b
    Examples:
      pmapx verify --before old --after new -- python train.py --steps 3
      pmapx verify --before old --after new --devices 4 --strict -- python -m lab.train
      pmapx verify --before old --after new --rtol 0 --atol 0 -- python train.py
    """
    for folder in (before, after):
        if not os.path.isdir(folder):
            fail(ctx, f"no such folder: {folder}")
    try:
        with Seconds("Running {} the change") as seconds:
            found = verify(
                command_line,
                before,
                after,
                devices=devices,
                calls=calls,
                tolerance=Tolerance(rtol, atol),
                timeout=timeout,
                exclude=exclude,
                progress=seconds.show,
            )
    except CannotRunError as error:
        fail(ctx, str(error))
    if layout == "json":
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        text = as_text(found).encode("utf-8", "replace").decode("utf-8")
        click.echo(text, color=colour(color))
    ctx.exit(found.exit_code(is_strict=strict))
