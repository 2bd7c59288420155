"""``pmapx verify``: migrated code does what it did, shown by running it."""

from __future__ import annotations

import json
import os

import click

from pmapx._src.cli._command_line import WithCommandLine, verify_options
from pmapx._src.cli._terminal import Seconds, colour, fail
from pmapx._src.cli._verification import as_text
from pmapx._src.verify.compare.tolerance import Tolerance
from pmapx._src.verify.runs import CannotRunError
from pmapx._src.verify.verify import verify

# Shells complete folders there.
FOLDER = click.Path(file_okay=False)


@click.command(
    "verify",
    cls=WithCommandLine,
    short_help="Run a program before and after, and compare every call.",
)
@click.option("--before", required=True, type=FOLDER, metavar="DIR", help="The code with pmap.")
@click.option("--after", required=True, type=FOLDER, metavar="DIR", help="The migrated code.")
@verify_options
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print.",
)
@click.option("--color/--no-color", default=None, help="Colours; on terminals unless told.")
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
    """Run a command on two versions of a program, and compare what its maps took and gave.

    It runs once in each folder, with the same virtual devices and hash seed, the version before in
    the legacy mode. Every call of a function that was pmapped before, or is a shard_map now, is
    compared: equal to the bit, equal within a tolerance, or different, with the first call and leaf
    that differ and by how much. Of several processes, as pmapx run -n starts them, each is compared
    with its own. Exits with 0 if all that was reached is verified, 1 if something is
    different, nothing was reached, or a site is unverified with --strict, 2 on an error.

    \b
    Examples:
      pmapx verify --before old --after new -- python train.py --steps 3
      pmapx verify --before old --after new --strict -- python -m lab.train
      pmapx verify --before old --after new -- pmapx run -n 2 train.py
      pmapx verify --before old --after new --rtol 0 --atol 0 -- python train.py
    """
    for folder in (before, after):
        if not os.path.isdir(folder):
            fail(ctx, f"no such folder: {folder}")
    if not ctx.obj:
        fail(ctx, "give the command to run after --, as in: -- python train.py --steps 3")
    try:
        with Seconds("Running the version {}") as seconds:
            found = verify(
                ctx.obj,
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
