"""``pmapx check``: uses of pmap, what breaks on today's JAX, and the fixes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pmapx._src.cli._terminal import (
    Progress,
    check_paths,
    color_option,
    colored_diff,
    echo,
    exclude_option,
    format_option,
    next_step,
)
from pmapx._src.lint import settings
from pmapx._src.lint.check import Report, check, check_text
from pmapx._src.lint.formats import FORMATS, render
from pmapx._src.pages.formatting import counted
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.location import Confidence
from pmapx._src.source.rewriting import atomic_write

if TYPE_CHECKING:
    from pmapx._src.lint.baseline import Baseline
    from pmapx._src.lint.finding import Finding
    from pmapx._src.lint.fixing import FixedFile

_BASELINE_ALONE = "--write-baseline cannot be combined with --fix, --diff or standard input"


@click.command("check", short_help="Find uses of pmap, and what breaks on today's JAX.")
@click.argument("paths", nargs=-1, type=click.Path(), metavar="PATH...")
@format_option(*FORMATS)
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
@click.option(
    "--target-jax",
    metavar="VERSION",
    help="Report what this release of JAX removed, changed or deprecated; by default what the "
    "newest removed or changed.",
)
@click.option("--fix", is_flag=True, help="Apply safe fixes; report what is left.")
@click.option("--unsafe-fixes", is_flag=True, help="Apply unsafe fixes too, with --fix or --diff.")
@click.option(
    "--diff", "is_diff", is_flag=True, help="Show what --fix would change; write nothing."
)
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Do not report the findings that are in FILE.",
)
@click.option(
    "--write-baseline", is_flag=True, help="Write all findings to the baseline, and report none."
)
@click.option(
    "--stdin-filename",
    type=click.Path(),
    metavar="NAME",
    help="Read the source from standard input, and report it as the file NAME. With --fix, the "
    "fixed source goes to standard output.",
)
@click.option("--output", type=click.Path(dir_okay=False), help="Write the report to a file.")
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
    target_jax: str | None,
    fix: bool,
    unsafe_fixes: bool,
    is_diff: bool,
    baseline: str | None,
    write_baseline: bool,
    stdin_filename: str | None,
    output: str | None,
    jobs: int | None,
    color: bool | None,
    exit_zero: bool,
) -> None:
    """Find uses of pmap, and what breaks on today's JAX.

    Reads Python files and notebooks under each PATH, or standard input if PATH is -, and never
    imports or runs them. Exits with 0 if there are no findings, 1 if there are, 2 on an error.

    \b
    Examples:
      pmapx check .
      pmapx check src --select PMX51 --confidence high
      pmapx check . --target-jax 0.12 --diff
      pmapx check . --fix --unsafe-fixes
      pmapx check . --baseline known.json --write-baseline
      pmapx check . --baseline known.json
      pmapx check --stdin-filename train.py --fix < train.py
      pmapx check . --format sarif --output pmapx.sarif
    """
    is_read = stdin_filename is not None or paths == ("-",)
    name = stdin_filename or "stdin.py"
    is_fixed = fix or is_diff
    _refuse(ctx, paths, is_read)
    if unsafe_fixes and not is_fixed:
        raise CommandError("--unsafe-fixes needs --fix or --diff")
    if write_baseline and (is_read or is_fixed):
        raise CommandError(_BASELINE_ALONE)
    # Freeing every tree when the process ends takes a third as long as the check.
    atexit.register(gc.freeze)
    wanted = settings.make(
        settings.load([name] if is_read else paths), select=select, ignore=ignore, exclude=exclude,
        confidence=confidence, target_jax=target_jax, baseline=baseline,
    )  # fmt: skip
    known = None if write_baseline else _baseline(wanted)

    def checked(text: bytes) -> Report:
        report = check_text(name, text, wanted) if is_read else _checked(paths, wanted, jobs)
        return report if known is None else known.without_known(report, wanted.codes)

    def is_wanted(finding: Finding) -> bool:
        return wanted.reports(finding) and (known is None or not known.has(finding))

    source = sys.stdin.buffer.read() if is_read else b""
    report = checked(source)
    if write_baseline:
        _write_baseline(wanted, report)
        return
    text = (name, source) if is_read else None
    fixed = _fixed(report, text, is_wanted, unsafe_fixes) if is_fixed else []
    if is_diff:
        ctx.exit(1 if _show_diff(fixed, color) and not exit_zero else 0)
    if fixed:
        if not is_read:
            _write(fixed)
        report = checked(fixed[0].after)
    if is_read and fix:
        click.echo(fixed[0].after, nl=False)
    _show(report, layout, output, color, is_error=is_read and fix)
    ctx.exit(1 if report.findings and not exit_zero else 0)


def _refuse(ctx: click.Context, paths: tuple[str, ...], is_read: bool) -> None:
    """Ends the command if there is nothing to read, or both paths and standard input."""
    if is_read and paths not in ((), ("-",)):
        raise CommandError("--stdin-filename reads standard input: pass no PATH, or -")
    if not is_read:
        if not paths:
            raise click.MissingParameter(
                ctx=ctx, param=next(p for p in ctx.command.params if p.name == "paths")
            )
        check_paths(paths)


def _checked(paths: tuple[str, ...], wanted: settings.Settings, jobs: int | None) -> Report:
    with Progress("Checking") as progress:
        return check(paths, wanted, processes=jobs, progress=progress.advance)


def _baseline(wanted: settings.Settings) -> Baseline | None:
    if wanted.baseline is None:
        return None
    from pmapx._src.lint.baseline import Baseline

    return Baseline.read(wanted.baseline)


def _write_baseline(wanted: settings.Settings, report: Report) -> None:
    """Writes the findings to the baseline; its entries of other files stay."""
    if wanted.baseline is None:
        raise CommandError("--write-baseline needs --baseline FILE")
    from pmapx._src.lint.baseline import Baseline

    exists = os.path.exists(wanted.baseline)
    known = Baseline.read(wanted.baseline) if exists else Baseline(wanted.baseline)
    known.write(report, wanted.codes)
    findings = counted(len(report.findings), "finding")
    click.echo(f"Wrote {findings} to {wanted.baseline}.", err=True)
    next_step("commit it, and pass --baseline in CI: only new findings are reported.", err=True)


def _fixed(
    report: Report,
    text: tuple[str, bytes] | None,
    is_wanted: Callable[[Finding], bool],
    is_unsafe: bool,
) -> list[FixedFile]:
    """Returns the fixed files of a report, or the fixed text of standard input."""
    from pmapx._src.lint.fixing import fix_reported, fix_text

    if text is not None:
        return [fix_text(*text, is_wanted, is_unsafe=is_unsafe)]
    return fix_reported(report, is_wanted, is_unsafe=is_unsafe)


def _show_diff(fixed: list[FixedFile], color: bool | None) -> bool:
    """Prints what the fixes change; returns whether they change anything."""
    from pmapx._src.source.rewriting.change import diff

    changed = [file for file in fixed if file.after != file.before]
    for file in changed:
        echo(colored_diff(diff(file)), color)
    # On standard error: the output is a patch.
    is_any = "pass --fix to write these changes."
    step = is_any if changed else "nothing to fix; pmapx check lists the findings."
    next_step(step, color, err=True)
    return bool(changed)


def _write(fixed: list[FixedFile]) -> None:
    from pmapx._src.source.rewriting.change import write

    for file in fixed:
        if why := write(file):
            raise CommandError(f"cannot write {file.path}: {why}")
    findings = counted(sum(len(file.fixed) for file in fixed), "finding")
    click.echo(f"Fixed {findings} in {counted(len(fixed), 'file')}.", err=True)


def _show(
    report: Report, layout: str, output: str | None, color: bool | None, *, is_error: bool
) -> None:
    rendered = render(report, layout)
    if output is not None:
        atomic_write.write_output(output, click.unstyle(rendered) + "\n")
    else:
        echo(rendered, color, err=is_error)
