"""``pmapx check``: uses of pmap, what breaks on today's JAX, and the fixes."""

from __future__ import annotations

import atexit
import gc
from typing import TYPE_CHECKING

import click

from pmapx._src.cli._terminal import (
    Bar,
    check_paths,
    color_option,
    colored_diff,
    echo,
    exclude_option,
    fail,
)
from pmapx._src.lint import settings
from pmapx._src.lint.check import Report, check
from pmapx._src.lint.formats import FORMATS, render
from pmapx._src.source.location import Confidence
from pmapx._src.source.rewriting import atomic_write

if TYPE_CHECKING:
    from pmapx._src.lint.fixing import FixedFile


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
@click.option("--fix", is_flag=True, help="Apply safe fixes; report what is left.")
@click.option("--unsafe-fixes", is_flag=True, help="Apply unsafe fixes too, with --fix or --diff.")
@click.option(
    "--diff", "is_diff", is_flag=True, help="Show what --fix would change; write nothing."
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
    fix: bool,
    unsafe_fixes: bool,
    is_diff: bool,
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
      pmapx check . --diff
      pmapx check . --fix --unsafe-fixes
      pmapx check . --format sarif --output pmapx.sarif
    """
    check_paths(ctx, paths)
    # Freeing every tree when the process ends takes a third as long as the check.
    atexit.register(gc.freeze)
    if unsafe_fixes and not (fix or is_diff):
        fail(ctx, "--unsafe-fixes needs --fix or --diff")
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
        from pmapx._src.source.rewriting.change import diff

        for file in fixed:
            echo(colored_diff(diff(file)), color)
        ctx.exit(1 if fixed and not exit_zero else 0)
    if fixed:
        _write(ctx, fixed)
        with Bar("Checking") as bar:
            report = check(paths, wanted, processes=jobs, progress=bar.advance)
    _show(ctx, report, layout, output, color)
    ctx.exit(1 if report.findings and not exit_zero else 0)


def _write(ctx: click.Context, fixed: list[FixedFile]) -> None:
    from pmapx._src.source.rewriting import atomic_write

    for file in fixed:
        try:
            atomic_write.write(file.path, file.after, expected=file.before)
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
            atomic_write.write_output(output, click.unstyle(rendered) + "\n")
        except atomic_write.UnwritableError as error:
            fail(ctx, str(error))
    else:
        echo(rendered, color)
