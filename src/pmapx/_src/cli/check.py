"""``pmapx check``: uses of pmap, and what breaks on today's JAX."""

from __future__ import annotations

import click

from pmapx._src.cli._terminal import Bar, check_paths, color_option, echo, exclude_option, fail
from pmapx._src.lint.check import check
from pmapx._src.lint.formats import FORMATS, render
from pmapx._src.source import atomic_write, settings
from pmapx._src.source.location import Confidence


@click.command("check", short_help="Find uses of pmap, and what breaks on today's JAX.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--format",
    "layout",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--select", multiple=True, metavar="CODE", help="Only these codes; PMX51 selects all PMX51x."
)
@click.option("--ignore", multiple=True, metavar="CODE", help="All except these codes.")
@exclude_option
@click.option(
    "--confidence",
    type=click.Choice([str(level) for level in Confidence]),
    help="Minimum confidence to report; medium by default.",
)
@click.option("--output", type=click.Path(dir_okay=False), help="Write to a file.")
@click.option(
    "--jobs", type=click.IntRange(1), metavar="N", help="Number of processes; automatic by default."
)
@color_option
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    layout: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    exclude: tuple[str, ...],
    confidence: str | None,
    output: str | None,
    jobs: int | None,
    color: bool | None,
    exit_zero: bool,
) -> None:
    """Find uses of pmap, and what breaks on today's JAX.

    Reads Python files and notebooks under each PATH, and never imports or runs them. Exits with 0
    if there are no findings, 1 if there are, 2 on an error.

    \b
    Examples:
      pmapx check .
      pmapx check src --select PMX51 --confidence high
      pmapx check . --format sarif --output pmapx.sarif
    """
    check_paths(ctx, paths)
    try:
        wanted = settings.make(
            settings.load(paths),
            select=select,
            ignore=ignore,
            exclude=exclude,
            confidence=confidence,
        )
    except settings.SettingsError as error:
        fail(ctx, str(error))
    with Bar("Checking") as bar:
        report = check(paths, wanted, processes=jobs, progress=bar.advance)
    rendered = render(report, layout)
    if output is not None:
        try:
            atomic_write.write_output(output, click.unstyle(rendered) + "\n")
        except atomic_write.UnwritableError as error:
            fail(ctx, str(error))
    else:
        echo(rendered, color)
    ctx.exit(1 if report.findings and not exit_zero else 0)
