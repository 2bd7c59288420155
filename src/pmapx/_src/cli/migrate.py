"""``pmapx migrate``: rewrites pmap to shard_map."""

from __future__ import annotations

import collections
import os
import subprocess
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pmapx._src.cli import _migration
from pmapx._src.cli._command_line import WithCommandLine, checked_topology, verify_options
from pmapx._src.cli._terminal import (
    Progress,
    check_paths,
    color_option,
    colored_diff,
    echo,
    exclude_option,
    next_step,
    wants_traceback,
)
from pmapx._src.lint import settings
from pmapx._src.pages.formatting import counted, first
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.rewriting import atomic_write

if TYPE_CHECKING:
    from pmapx._src.codemod.program import Migration
    from pmapx._src.codemod.report.page import Verdict


# Files that a warning lists.
_LISTED = 20


@click.command("migrate", cls=WithCommandLine)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option("--write", "is_written", is_flag=True, help="Rewrite the files.")
@click.option(
    "--diff/--no-diff",
    "is_shown",
    default=None,
    help="Print a diff; on by default without --write.",
)
@click.option(
    "--to",
    type=click.Choice(["shard_map", "jit", "pmapx"]),
    default="shard_map",
    show_default=True,
    help="shard_map and jit write plain JAX; jit drops shard_map and collectives from each step "
    "that a run of COMMAND proves to be a function of the global batch. pmapx is the smallest "
    "change: the same code with pmapx's functions.",
)
@click.option(
    "--mesh",
    type=click.Choice(["auto", "explicit"]),
    default="auto",
    show_default=True,
    help="With --to jit: the type of the mesh's axes; explicit only if JAX accepts all steps.",
)
@click.option(
    "--fsdp",
    "with_fsdp",
    is_flag=True,
    help="With --to jit: shard parameters and optimizer state over the data axis, each array along "
    "its largest dimension that the number of devices divides; arrays of fewer than 1,024 elements "
    "stay replicated.",
)
@click.option(
    "--topology",
    metavar="T",
    help="With --to jit: also compile both forms for a target topology, such as v5e:16x16, and "
    "show what they cost there.",
)
@click.option(
    "--style",
    type=click.Choice(["global", "replicated", "stacked"]),
    default="global",
    show_default=True,
    help="global drops the leading device axis from values that are proven equal on all devices, "
    "by their source or a run of COMMAND, and merges batches into global ones. replicated does "
    "only the first. stacked keeps all shapes.",
)
@click.option(
    "--replicated",
    "named",
    multiple=True,
    metavar="FUNCTION:ARGUMENT",
    help="Assume that this argument, or output (FUNCTION:return[1]), is equal on all devices.",
)
@click.option(
    "--helpers",
    type=click.Path(),
    metavar="FILE.py",
    help="A module of the project for functions that migrated files call and meshes that several "
    "need, created if it does not exist. Without it, each file has its own.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(),
    metavar="FILE.html",
    help="Write an HTML page with every site, its outcome, and the code before and after.",
)
@click.option(
    "--verify",
    "is_verified",
    is_flag=True,
    help="Run COMMAND on both versions first, and write only if the results agree.",
)
@verify_options
@exclude_option
@color_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    is_written: bool,
    is_shown: bool | None,
    to: str,
    mesh: str,
    with_fsdp: bool,
    topology: str | None,
    style: str,
    named: tuple[str, ...],
    helpers: str | None,
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

    Prints a diff and changes nothing unless --write is given. Never imports or runs the code,
    except for a COMMAND after --, which runs in copies of the tree: it shows what is equal on all
    devices, and --verify compares both versions. Exits with 0 if nothing is left to do, 1 if
    changes are not written or not verified, or code is left or cannot be read, 2 on an error.

    \b
    Examples:
      pmapx migrate .
      pmapx migrate src --write --report migration.html
      pmapx migrate src --write --to pmapx
      pmapx migrate . --write --verify -- python train.py --steps 3
      pmapx migrate . -- python train.py --steps 3
      pmapx migrate . --to jit -- python train.py --steps 3
      pmapx migrate . --to jit --fsdp -- python train.py --steps 3
      pmapx migrate . --replicated train_step:state
      pmapx migrate . --helpers pkg/sharding.py
    """
    is_stacked = style == "stacked" or (to == "pmapx" and style == "global")
    problem = _migration.problem(
        ctx.obj, to, style, mesh, with_fsdp, topology, helpers, is_verified, bool(named), is_stacked
    )
    if problem:
        raise CommandError(problem)
    topology = checked_topology(topology)
    _check_paths(paths, page, helpers)
    excluded = settings.make(settings.load(paths), exclude=exclude).exclude
    done = _migration.migrated(
        paths, ctx.obj, is_stacked=is_stacked, devices=devices, timeout=timeout,
        to=to, style=style, named=named, helpers=helpers, exclude=excluded,
        mesh=mesh, fsdp=with_fsdp, topology=topology,
    )  # fmt: skip
    if done.failure is not None:
        _report_failure(done.failure)
    if is_shown or (is_shown is None and not is_written):
        _show_diff(done, color)
    verdicts, code = None, 0
    if is_verified and done.changed:
        options = {"devices": devices, "calls": calls, "timeout": timeout, "exclude": excluded}
        verdicts, code = _verify(ctx.obj, done, options, (rtol, atol), strict, color)
    elif is_verified:
        echo("Nothing to verify: no file would change.", color)
    is_written = is_written and not code
    failed = _write(done) if is_written else {}
    echo(_summary(done, is_written, failed), color)
    if page is not None:
        _write_report(page, done, is_written=is_written, failed=failed, verdicts=verdicts)
    next_step(_next_step(done, is_written, is_verified, code), color)
    is_open = done.left or done.unreadable or (done.changed and not is_written)
    ctx.exit(2 if failed else code or int(bool(is_open)))


def _check_paths(paths: Sequence[str], page: str | None, helpers: str | None) -> None:
    """Ends the command if a path cannot be read or written."""
    from pmapx._src.codemod.migration import shared_module

    check_paths(paths)
    if page is not None:
        atomic_write.check(page)
    if helpers is not None:
        shared_module(helpers, paths)


def _show_diff(done: Migration, color: bool | None) -> None:
    from pmapx._src.source.rewriting.change import diff

    for file in done.changed:
        echo(colored_diff(diff(file)), color)


def _report_failure(error: Exception) -> None:
    *_, frame = traceback.extract_tb(error.__traceback__)
    if wants_traceback():
        traceback.print_exception(error)
    click.echo(
        f"pmapx: warning: internal error in {os.path.basename(frame.filename)}:{frame.lineno} "
        f"({type(error).__name__}: {error}); the files are rewritten as with --style stacked. "
        "Please report it with the output of pmapx info (PMAPX_TRACEBACK=1 shows the traceback)",
        err=True,
    )


def _verify(
    command: Sequence[str],
    done: Migration,
    options: dict[str, Any],
    tolerance: tuple[float | None, float | None],
    is_strict: bool,
    color: bool | None,
) -> tuple[dict[tuple[str, int], Verdict], int]:
    """Compares runs of the command; returns the verdicts for the report, and the exit code."""
    from pmapx._src.cli.verify import as_text
    from pmapx._src.codemod.verified import verify_migration
    from pmapx._src.verify.compare.compare_arrays import Tolerance

    options["tolerance"] = Tolerance(*tolerance)
    # What is in the jit form was compared with the global form already.
    form = done.global_form or done
    with Progress("Running the program ({})") as progress:
        found, verdicts = verify_migration(form, command, progress=progress.show, **options)
    echo(as_text(found, is_strict=is_strict), color)
    code = found.exit_code(is_strict=is_strict)
    if code:
        echo("Nothing was written: the change is not verified.", color)
    return verdicts, code


def _write(done: Migration) -> dict[str, str]:
    """Writes the changed files; returns the reason for each that could not be written."""
    from pmapx._src.source.rewriting.change import write

    _warn_before_writing([file.path for file in done.changed])
    return {file.path: why for file in done.changed if (why := write(file))}


def _write_report(page: str, done: Migration, **outcome: Any) -> None:
    from pmapx._src.codemod.report import page as report

    atomic_write.write_output(page, report.render(report.report(done, **outcome)))


def _summary(done: Migration, is_written: bool, failed: dict[str, str]) -> str:
    """Returns a line per file, then a line per site that was left, replicated or kept stacked."""
    lines = [f"{path}: not written: {why}" for path, why in failed.items()]
    lines += [f"{each.path}: not read: {each.reason}" for each in done.unreadable]
    width = max([len("file"), *(len(file.path) for file in done.files)])
    word = "rewritten" if is_written else "to rewrite"
    if done.files:
        lines.append(click.style(f"{'file':<{width}}  {word:>10}  left", bold=True))
    for file in done.files:
        left = [each for each in file.outcomes if each.reason]
        lines.append(f"{file.path:<{width}}  {len(file.outcomes) - len(left):>10}  {len(left):>4}")
    for file in done.files:
        for each in file.outcomes:
            if each.reason:
                where = f"{file.path}:{each.where}"
                lines.append(f"{where}: left: {each.what}: {each.reason}")
    for gain in done.gains:
        lines.append(f"{gain.place}: replicated: {gain.what}")
    for stay in done.stays:
        lines.append(f"{stay.place}: stays stacked: {stay.what}: {stay.reason}")
    lines += _forms(done)
    if done.gains or done.stays:
        stacked = len({stay.place for stay in done.stays})
        lines.append(
            f"{len(done.gains)} with values that become replicated, "
            f"{stacked} with values that stay stacked"
        )
    total = collections.Counter(bool(each.reason) for f in done.files for each in f.outcomes)
    files = counted(done.read, "file")
    # A module for the project may be new.
    changed = sum(bool(file.before) for file in done.changed) - len(failed)
    lines.append(
        f"{total[False]} {word} in {changed} of {files}, {total[True]} left"
        if total
        else f"No use of pmap in {'the files that could be read' if done.unreadable else files}."
    )
    if done.renamed:
        replaced = "replaced" if is_written else "to replace"
        lines.append(f"{counted(done.renamed, 'removed name')} {replaced}")
    if done.old_comments:
        lines.append(_old_comments(done))
    if done.changed:
        from pmapx._src.codemod.report import page

        lines.append(f"{page.counted(page.report(done))}.")
    if done.changed and not is_written:
        lines.append("Nothing was changed.")
    return "\n".join(lines)


def _old_comments(done: Migration) -> str:
    """Returns where comments may not hold any more, by the lines of the new files."""
    places = [f"{path}:{line}" for path, line in done.old_comments]
    more = f" and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
    verb = "comments mention" if len(places) > 1 else "comment mentions"
    return (
        f"{len(places)} {verb} pmap or a device axis beside the change: "
        f"{', '.join(places[:_LISTED])}{more}"
    )


def _forms(done: Migration) -> list[str]:
    """Returns a line for each map that is a jitted function, or keeps shard_map."""
    lines = []
    for form in done.forms:
        if form.reason:
            lines.append(f"{form.place}: keeps shard_map: {form.function}: {form.reason}")
        else:
            lines.append(f"{form.place}: jit: {form.function}: {form.detail}")
            lines += [f"  {each}" for each in (*form.replaced, *form.notes)]
    if done.forms:
        kept = sum(bool(form.reason) for form in done.forms)
        lines.append(f"{len(done.forms) - kept} as jax.jit, {kept} with shard_map")
    return lines


def _next_step(done: Migration, is_written: bool, is_verified: bool, code: int) -> str:
    """Returns what to do now."""
    if code:
        return "compare the first difference in both versions, or run a command that reaches more."
    if done.changed and not is_written:
        verified = "" if is_verified else ", and --verify -- COMMAND to compare both versions first"
        return f"pass --write to rewrite the files{verified}."
    by_hand = " Then change by hand what is left: pmapx explain PMX501." if done.left else ""
    if done.changed and is_verified:
        return f"review the change with git diff, and commit it.{by_hand}"
    if done.changed:
        command = "pmapx verify --before OLD --after . -- COMMAND"
        return f"compare both versions: {command}.{by_hand}"
    return by_hand.removeprefix(" Then ") or "pmapx check lists what else breaks on today's JAX."


def _warn_before_writing(paths: list[str]) -> None:
    """Lists files of which git has no copy as they are now: the change cannot be undone there."""
    outside, uncommitted = [], []
    for folder in sorted({os.path.dirname(os.path.abspath(path)) for path in paths}):
        names = [p for p in paths if os.path.dirname(os.path.abspath(p)) == folder]
        status = _git_status(folder, [os.path.basename(name) for name in names])
        if status is None:
            outside += names
        else:
            uncommitted += [name for name in names if os.path.basename(name) in status]
    if outside:
        _warn("not in a git repository, so the change cannot be undone", outside)
    if uncommitted:
        _warn("uncommitted changes before the rewrite", uncommitted)


def _warn(what: str, paths: list[str]) -> None:
    listed = "".join(f"\n  {line}" for line in first(paths, _LISTED))
    click.echo(f"pmapx: warning: {what}:{listed}", err=True)


def _git_status(folder: str, names: list[str]) -> list[str] | None:
    """Returns the files of a folder that git does not have as they are; None outside of git."""
    try:
        # Runs no monitor that the repository configures.
        status = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "status", "--porcelain", "-z", "--ignored"]
            + ["--untracked-files=all", "--", *names],
            cwd=folder,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if status.returncode:
        return None
    # The name that a file was renamed from follows in a separate entry.
    entries = [entry for entry in os.fsdecode(status.stdout).split("\0") if entry[2:3] == " "]
    changed = {os.path.basename(entry[3:].rstrip("/")) for entry in entries}
    # An ignored folder is listed in place of its files.
    is_all = any(entry.startswith("!!") and entry.endswith("/") for entry in entries)
    return [name for name in names if is_all or name in changed]
