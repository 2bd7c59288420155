"""``pmapx check``: findings in code that uses pmap, and their fixes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from pmapx._src.cli._terminal import Bar, colour, coloured_diff, fail
from pmapx._src.lint.check import Report, check
from pmapx._src.lint.formats import FORMATS, render
from pmapx._src.source import settings
from pmapx._src.source.location import Confidence

if TYPE_CHECKING:
    from pmapx._src.lint.fixing import FixedFile


@click.command("check", short_help="Find uses of pmap, and what is wrong with them today.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--format",
    "layout",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How to print.",
)
@click.option("--select", multiple=True, metavar="CODE", help="Only these; PMX51 is all PMX51x.")
@click.option("--ignore", multiple=True, metavar="CODE", help="All but these.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders.")
@click.option(
    "--confidence",
    type=click.Choice([str(level) for level in Confidence]),
    help="The least confidence to report; medium unless told.",
)
@click.option("--fix", is_flag=True, help="Apply safe fixes; report what is left.")
@click.option("--unsafe-fixes", is_flag=True, help="Apply unsafe fixes too, with --fix or --diff.")
@click.option(
    "--diff", "is_diff", is_flag=True, help="Show what --fix would change; write nothing."
)
@click.option("--output", type=click.Path(dir_okay=False), help="Write to a file.")
@click.option(
    "--jobs", type=click.IntRange(1), metavar="N", help="Processes; as many as pay unless told."
)
@click.option("--color/--no-color", default=None, help="Colours; on terminals unless told.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if something is found.")
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    layout: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    exclude: tuple[str, ...],
    confidence: str | None,
    fix: bool,
    unsafe_fixes: bool,
    is_diff: bool,
    output: str | None,
    jobs: int | None,
    color: bool | None,
    exit_zero: bool,
) -> None:
    """Find uses of pmap, and what goes wrong with them on today's JAX.

    Reads Python files and notebooks below each PATH; never imports or runs them. Exits with 0 if
    nothing is found, 1 if something is, 2 on an error.

    \b
    Examples:
      pmapx check .
      pmapx check src --select PMX51 --confidence high
      pmapx check . --diff
      pmapx check . --fix --unsafe-fixes
      pmapx check . --format sarif --output pmapx.sarif
    """
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        fail(ctx, f"no such file or folder: {missing[0]!r}")
    if unsafe_fixes and not (fix or is_diff):
        fail(ctx, "--unsafe-fixes goes with --fix or --diff")
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
    fixed: list[FixedFile] = []
    if fix or is_diff:
        from pmapx._src.lint.fixing import fix_reported

        fixed = fix_reported(report, wanted, is_unsafe=unsafe_fixes)
    if is_diff:
        from pmapx._src.source.change import diff

        for file in fixed:
            click.echo(coloured_diff(diff(file)), color=colour(color))
        ctx.exit(1 if fixed and not exit_zero else 0)
    if fixed:
        _write(ctx, fixed)
        with Bar("Checking") as bar:
            report = check(paths, wanted, processes=jobs, progress=bar.advance)
    _show(ctx, report, layout, output, color)
    ctx.exit(1 if report.findings and not exit_zero else 0)


def _write(ctx: click.Context, fixed: list[FixedFile]) -> None:
    from pmapx._src.source import atomic_write

    for file in fixed:
        try:
            atomic_write.write(file)
        except OSError as error:
            fail(ctx, f"cannot write {file.path}: {(error.strerror or str(error)).lower()}")
    count = sum(len(file.fixed) for file in fixed)
    findings, files = ("finding" + "s" * (count != 1), "file" + "s" * (len(fixed) != 1))
    click.echo(f"Fixed {count:,} {findings} in {len(fixed):,} {files}.", err=True)


def _show(
    ctx: click.Context, report: Report, layout: str, output: str | None, color: bool | None
) -> None:
    rendered = render(report, layout)
    if output is not None:
        try:
            with open(output, "w", encoding="utf-8", errors="replace") as file:
                file.write(click.unstyle(rendered) + "\n")
        except OSError as error:
            fail(ctx, f"cannot write {output}: {(error.strerror or '').lower()}")
    elif rendered:
        click.echo(rendered.encode("utf-8", "replace").decode("utf-8"), color=colour(color))
