"""``pmapx migrate``: from pmap to shard_map."""

from __future__ import annotations

import collections
import functools
import os
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pmapx._src.cli._command_line import WithCommandLine, verify_options
from pmapx._src.cli._terminal import Bar, Seconds, colour, coloured_diff, fail
from pmapx._src.source import settings

if TYPE_CHECKING:
    from pmapx._src.codemod.migration import Migration
    from pmapx._src.codemod.replicated.evidence import Evidence
    from pmapx._src.codemod.report.page import Verdict


@click.command("migrate", cls=WithCommandLine)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option("--write", "is_written", is_flag=True, help="Change the files.")
@click.option(
    "--diff/--no-diff", "is_shown", default=None, help="Show the change; on unless --write."
)
@click.option(
    "--to",
    type=click.Choice(["shard_map", "pmapx"]),
    default="shard_map",
    show_default=True,
    help="shard_map writes plain JAX; pmapx is the small step, the same code with our functions.",
)
@click.option(
    "--style",
    type=click.Choice(["stacked", "replicated"]),
    default="stacked",
    show_default=True,
    help="stacked keeps every shape: one row a device. replicated takes the axis of devices off "
    "what is proven equal on all of them: COMMAND is run once on the old code for that.",
)
@click.option(
    "--replicated",
    "named",
    multiple=True,
    metavar="FUNCTION:ARGUMENT",
    help="Take this argument, or result (FUNCTION:return[1]), to be equal on all devices.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(),
    metavar="FILE.html",
    help="Write a page with every site, what became of it, and the code before and after.",
)
@click.option(
    "--verify",
    "is_verified",
    is_flag=True,
    help="Run the command after -- on both versions first, and write only what does the same.",
)
@verify_options
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders.")
@click.option("--color/--no-color", default=None, help="Colours; on terminals unless told.")
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    is_written: bool,
    is_shown: bool | None,
    to: str,
    style: str,
    named: tuple[str, ...],
    page: str | None,
    is_verified: bool,
    devices: int | None,
    rtol: float | None,
    atol: float | None,
    calls: int,
    timeout: float,
    strict: bool,
    exclude: tuple[str, ...],
    color: bool | None,
) -> None:
    """Rewrite uses of pmap to jax.jit of jax.shard_map, in plain JAX.

    Shows a diff and changes nothing, unless --write is given. Never imports or runs the code, but
    for a COMMAND behind --, which --verify and --style replicated run. Exits with 0 if nothing is
    to be done, 1 if something is shown, left, not read or different, 2 on an error.

    \b
    Examples:
      pmapx migrate .
      pmapx migrate src --write --report migration.html
      pmapx migrate src --write --to pmapx
      pmapx migrate . --write --verify -- python train.py --steps 3
      pmapx migrate . --style replicated -- python train.py --steps 3
      pmapx migrate . --style replicated --replicated train_step:state
    """
    try:
        from pmapx._src.codemod import migration
        from pmapx._src.source import atomic_write
        from pmapx._src.source.change import diff
    except ModuleNotFoundError as error:
        fail(ctx, f'migrate needs {error.name}: pip install "pmapx[tools]"')
    from pmapx._src.codemod.replicated.naming import NamingError
    from pmapx._src.codemod.report import page as report
    from pmapx._src.pages import writing as pages

    if is_verified and not ctx.obj:
        fail(ctx, "--verify needs a command: --verify -- python train.py --steps 3")
    if ctx.obj is not None and not is_verified and style != "replicated":
        fail(ctx, "a command is run with --verify or --style replicated only")
    if named and style != "replicated":
        fail(ctx, "--replicated is for --style replicated")
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        fail(ctx, f"no such file or folder: {missing[0]}")
    try:
        if page is not None:
            pages.check(page)
        wanted = settings.make(settings.load(paths), exclude=exclude)
    except (settings.SettingsError, pages.UnwritableError) as error:
        fail(ctx, str(error))
    is_proven = style == "replicated" and ctx.obj
    evidence = _prove(ctx, ctx.obj, devices, timeout) if is_proven else None
    try:
        with Bar("Reading") as bar:
            done = migration.migrate(
                paths,
                exclude=wanted.exclude,
                to=to,
                style=style,
                evidence=evidence,
                named=named,
                progress=bar.advance,
            )
    except NamingError as error:
        fail(ctx, str(error))
    is_coloured = colour(color)
    if is_shown or (is_shown is None and not is_written):
        for file in done.changed:
            _echo(coloured_diff(diff(file)), is_coloured)
    verdicts, code = None, 0
    if is_verified and done.changed:
        options: dict[str, Any] = {"devices": devices, "calls": calls, "timeout": timeout}
        options |= {"exclude": wanted.exclude, "tolerance": (rtol, atol)}
        verdicts, code = _verify(ctx, done, options, strict, is_coloured)
        is_written = is_written and not code
    elif is_verified:
        _echo("Nothing to verify: no file is changed.", is_coloured)
    failed: dict[str, str] = {}
    if is_written:
        _warn_of_changes([file.path for file in done.changed])
        for file in done.changed:
            try:
                atomic_write.write(file)
            except OSError as error:
                failed[file.path] = (error.strerror or str(error)).lower()
    _echo(_summary(done, is_written, failed), is_coloured)
    if page is not None:
        try:
            shown = report.report(done, is_written=is_written, failed=failed, verdicts=verdicts)
            pages.write(page, report.render(shown))
        except pages.UnwritableError as error:
            fail(ctx, str(error))
    if failed or code:
        ctx.exit(2 if failed else code)
    is_open = done.left or done.unreadable or (done.changed and not is_written)
    ctx.exit(1 if is_open else 0)


def _prove(
    ctx: click.Context, command_line: Sequence[str], devices: int | None, timeout: float
) -> Evidence:
    """Runs the user's command on the code as it is, with a clock beside it."""
    from pmapx._src.codemod.replicated.proving import ProofError, prove
    from pmapx._src.verify.runs import default_devices

    wanted = devices if devices is not None else default_devices(os.environ)
    try:
        with Seconds("Running the command") as seconds:
            show = functools.partial(seconds.show, "")
            return prove(command_line, devices=wanted, timeout=timeout, progress=show)
    except ProofError as error:
        fail(ctx, str(error))


def _verify(
    ctx: click.Context,
    done: Migration,
    options: dict[str, Any],
    is_strict: bool,
    is_coloured: bool | None,
) -> tuple[dict[tuple[str, int], Verdict], int]:
    """Shows what the command says of the change; returns it for the report, and the exit code."""
    from pmapx._src.cli._verification import as_text
    from pmapx._src.verify.compare.tolerance import Tolerance
    from pmapx._src.verify.migrated import verify_migration
    from pmapx._src.verify.runs import CannotRunError

    options["tolerance"] = Tolerance(*options["tolerance"])
    try:
        with Seconds("Running the version {}") as seconds:
            found, verdicts = verify_migration(done, ctx.obj, progress=seconds.show, **options)
    except CannotRunError as error:
        fail(ctx, str(error))
    _echo(as_text(found), is_coloured)
    code = found.exit_code(is_strict=is_strict)
    if code:
        _echo("Nothing is written: the change is not verified.", is_coloured)
    return verdicts, code


def _echo(text: str, is_coloured: bool | None) -> None:
    if text:
        click.echo(text.encode("utf-8", "replace").decode("utf-8"), color=is_coloured)


def _summary(done: Migration, is_written: bool, failed: dict[str, str]) -> str:
    """What was rewritten and what is left, each file one line and each reason under it."""
    lines = [f"{path}: not written: {why}" for path, why in failed.items()]
    lines += [f"{each.path}: not read: {each.reason}" for each in done.unreadable]
    width = max([len("file"), *(len(file.path) for file in done.files)])
    if done.files:
        lines.append(click.style(f"{'file':<{width}}  rewritten  left", bold=True))
    for file in done.files:
        left = [each for each in file.outcomes if each.reason]
        lines.append(f"{file.path:<{width}}  {len(file.outcomes) - len(left):>9}  {len(left):>4}")
    for file in done.files:
        for each in file.outcomes:
            if each.reason:
                where = f"{file.path}:{each.where}"
                lines.append(f"{where}: left: {each.what}: {each.reason}")
    for gain in done.gains:
        where = f"{gain.place.path}:{gain.place.line}:{gain.place.column + 1}"
        lines.append(f"{where}: replicated: {gain.what}")
    for stay in done.stays:
        where = f"{stay.place.path}:{stay.place.line}:{stay.place.column + 1}"
        lines.append(f"{where}: stays stacked: {stay.what}: {stay.reason}")
    if done.gains or done.stays:
        stacked = len({stay.place for stay in done.stays})
        lines.append(
            f"{len(done.gains)} with replicated state, {stacked} with state that stays stacked"
        )
    total = collections.Counter(bool(each.reason) for f in done.files for each in f.outcomes)
    word = "rewritten" if is_written else "to rewrite"
    lines.append(
        f"{total[False]} {word} in {len(done.changed) - len(failed)} of {done.read} files, "
        f"{total[True]} left"
    )
    if done.changed and not is_written:
        lines.append("Nothing was changed; --write does it.")
    return "\n".join(lines)


def _warn_of_changes(paths: list[str]) -> None:
    """Says which files have changes that git does not hold, since these can then not be told."""
    dirty = []
    for folder in sorted({os.path.dirname(os.path.abspath(path)) for path in paths}):
        names = [p for p in paths if os.path.dirname(os.path.abspath(p)) == folder]
        try:
            # No hook or monitor that a repository names is run.
            status = subprocess.run(
                ["git", "-c", "core.fsmonitor=false", "status", "--porcelain", "--"]
                + [os.path.basename(name) for name in names],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return
        dirty += [line[3:] for line in status.stdout.splitlines()]
    if dirty:
        shown = ", ".join(dirty[:3]) + (", ..." if len(dirty) > 3 else "")
        click.echo(f"pmapx: git does not hold all of these before the change: {shown}", err=True)
