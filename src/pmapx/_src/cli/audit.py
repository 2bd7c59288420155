"""``pmapx audit``: replication, communication and memory of a program's pmapped functions."""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from pmapx._src.audit.report import baseline
from pmapx._src.audit.report.audit_report import AuditReport
from pmapx._src.audit.report.baseline import TOLERANCE
from pmapx._src.audit.running import merge_reports
from pmapx._src.audit.running.request import Request
from pmapx._src.audit.topology import names
from pmapx._src.cli._command_line import checked_topologies, checked_topology, devices_option
from pmapx._src.cli._terminal import format_option, next_step
from pmapx._src.lint.formats.as_github import annotation
from pmapx._src.pages.formatting import counted, is_part, place
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.rewriting import atomic_write
from pmapx._src.watch.command import INSTALL, run
from pmapx._src.watch.run_in_copy import default_devices

_HOOKS = (INSTALL, "pmapx._src.audit.running.listener:start")
_FILE = click.Path(dir_okay=False)


def _topologies(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names.completions(text)]


@click.command(
    "audit",
    short_help="Report a program's replication, communication and memory.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@devices_option
@click.option(
    "--topology",
    metavar="T",
    shell_complete=_topologies,
    help="Compile for a target topology, such as v5e:16x16; the program itself runs locally.",
)
@click.option(
    "--scaling",
    metavar="T,T,...",
    shell_complete=_topologies,
    help="Also compile for each of these topologies, such as v5e:8,64,256, and show what grows.",
)
@click.option(
    "--fixed",
    multiple=True,
    metavar="ARG",
    help="An argument that keeps its shape on more devices, such as state.",
)
@click.option(
    "--scale",
    multiple=True,
    metavar="ARG=DIM",
    help="An argument whose dimension DIM grows with the number of devices.",
)
@click.option(
    "--build",
    metavar="MODULE:FUNCTION",
    help="Audit the function and arguments that FUNCTION(devices) returns; no PROGRAM is run.",
)
@click.option(
    "--what-if",
    type=click.Choice(["fsdp"]),
    help="Also show the cost with the state of each step sharded over the data axis.",
)
@click.option("--json", "json_path", type=_FILE, help="Write the report as JSON.")
@click.option("--html", "html_path", type=_FILE, help="Write the report as an HTML page.")
@click.option("--save", type=_FILE, help="Write the figures as a baseline for --compare.")
@click.option(
    "--compare",
    "baseline_path",
    type=_FILE,
    help="Exit with 1 if a figure is worse than in this baseline.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=TOLERANCE,
    show_default=True,
    metavar="X",
    help="The relative growth that --compare accepts.",
)
@format_option(
    *("text", "github"),
    help="github also prints findings as GitHub annotations, on standard output.",
)
@click.option("--quiet", is_flag=True, help="Print no report.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as for python -m.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    devices: int | None,
    topology: str | None,
    scaling: str | None,
    fixed: tuple[str, ...],
    scale: tuple[str, ...],
    build: str | None,
    what_if: str | None,
    json_path: str | None,
    html_path: str | None,
    save: str | None,
    baseline_path: str | None,
    tolerance: float,
    layout: str,
    quiet: bool,
    is_module: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM unchanged, and audit the pmapped and jitted functions that it calls.

    Functions made by pmap (in legacy mode, as with pmapx run) or by jax.jit are analyzed at the
    first call of each signature; calls, transferred inputs and x[0] are counted during the run. The
    program keeps its output and exit status. The report is printed to standard error when it ends,
    even if it crashes or is interrupted with Ctrl-C. Exits with 1 if there was nothing to audit, or
    if compiles, collectives, bytes sent, memory or transferred inputs grew since the baseline.

    \b
    Examples:
      pmapx audit train.py --config=small
      pmapx audit --devices 8 --html audit.html -m trainer
      pmapx audit --topology v5e:16x16 --json audit.json -- python train.py
      pmapx audit --scaling v5e:8,64,256 --fixed params train.py
      pmapx audit --topology v5p:8x8x8 --build train:build
      pmapx audit --what-if fsdp --topology v5e:16x16 train.py
      pmapx audit --save baseline.json train.py
      pmapx audit --compare baseline.json --scaling v5e:8,256 train.py
    """
    request = _request(topology, scaling, fixed, scale, build, what_if)
    argv = _command_line(ctx, program, is_module, build)
    for path in filter(None, (json_path, html_path, save)):
        atomic_write.check(path)
    before = None if baseline_path is None else _baseline(baseline_path)
    env = request.in_environment(os.environ)
    if devices is None:
        devices = default_devices(env)
    with tempfile.TemporaryDirectory(prefix="pmapx-audit-") as records:
        try:
            status = run(argv, () if build else _HOOKS, records, devices=devices, env=env)
        except (FileNotFoundError, PermissionError) as error:
            raise CommandError(str(error)) from None
        report = merge_reports.of_records(records, " ".join(program) or build, status)
    compared = None if before is None else report.compare(before, tolerance)
    if json_path is not None:
        report.to_json(json_path)
    if save is not None:
        baseline.write(report, save)
    if html_path is not None:
        report.to_html(html_path, compared)
    if not quiet:
        click.echo(f"\n{report}", err=True)
    if layout == "github":
        _annotate(report, compared)
    assert status is not None, "there is no timeout"
    if status == 0 and not report.functions:
        _fail(ctx, "nothing was audited", "run a command that calls a pmapped or jitted function.")
    if unknown := _unknown_arguments(request, report):
        names = ", ".join(unknown)
        _fail(
            ctx, f"no function has an argument {names}", "name an argument as in the report above."
        )
    if compared is not None:
        click.echo(f"\ncompared with {baseline_path}:\n{compared}", err=True)
        if compared.worse and status == 0:
            worse = f"worse than the baseline: {counted(len(compared.worse), 'figure')}"
            _fail(ctx, worse, f"fix it, or accept it with --save {baseline_path}.")
    if status or compared is not None or not quiet:
        next_step(_next_step(status, compared is not None, report, save), err=True)
    # The status that a shell reports for a program that was killed by a signal.
    ctx.exit(status if status >= 0 else 128 - status)


def _annotate(report: AuditReport, compared: baseline.Comparison | None) -> None:
    lines = [
        ("error", change.place, "pmapx audit", str(change))
        for change in (compared.worse if compared is not None else ())
    ]
    lines += [
        ("warning", remark.place, remark.code, f"{remark.code} {remark.message}\n{remark.fix}")
        for remark in report.findings
    ]
    for kind, at, title, message in lines:
        file, _, line = place(at).rpartition(":") if at else ("", "", "")
        where = {"file": file, "line": line} if file else {}
        click.echo(annotation(kind, where, title, message))


def _fail(ctx: click.Context, problem: str, step: str) -> NoReturn:
    click.echo(f"pmapx: {problem}", err=True)
    next_step(step, err=True)
    ctx.exit(1)


def _next_step(status: int, is_compared: bool, report: AuditReport, save: str | None) -> str:
    if status in (-signal.SIGINT, 128 + signal.SIGINT):
        return "the report covers the run up to Ctrl-C; audit again for a complete one."
    if status:
        return "fix the program's error above, and audit it again."
    if is_compared:
        return "nothing to do: no figure is worse than the baseline."
    steps = ["pmapx explain CODE describes a finding"] if report.findings else []
    saved = "" if save else "--save baseline.json, then "
    steps.append(f"pass {saved}--compare {save or 'baseline.json'} in CI")
    return f"{'; '.join(steps)}."


def _baseline(path: str) -> AuditReport:
    try:
        return baseline.read(path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(str(error)) from None


def _request(
    topology: str | None,
    scaling: str | None,
    fixed: Sequence[str],
    scale: Sequence[str],
    build: str | None,
    what_if: str | None,
) -> Request:
    """Checks the options before the program runs."""
    scales: dict[str, int | None] = dict.fromkeys(fixed)
    for text in scale:
        argument, _, dimension = text.rpartition("=")
        if not argument or not dimension.isdecimal():
            raise click.BadParameter(f"{text!r} is not ARG=DIM", param_hint="--scale")
        scales[argument] = int(dimension)
    wanted = checked_topologies(scaling or "")
    return Request(checked_topology(topology), wanted, scales, build, what_if)


def _unknown_arguments(request: Request, report: AuditReport) -> list[str]:
    """Returns names of --fixed and --scale that no audited function has."""
    paths = [leaf.path for function in report.functions for leaf in function.arguments]
    if report.skipped:  # One of those may have it.
        return []
    return [name for name in request.scale if not any(is_part(path, name) for path in paths)]


def _command_line(
    ctx: click.Context, program: tuple[str, ...], is_module: bool, build: str | None
) -> list[str]:
    """Returns the command to run: a Python file or module, or any command."""
    if build is not None:
        if program:
            raise click.UsageError("--build takes no PROGRAM")
        return [sys.executable, "-m", "pmapx._src.audit.running.built"]
    if not program:
        raise click.UsageError("Missing argument 'PROGRAM...'", ctx=ctx)
    first = program[0]
    if is_module:
        return [sys.executable, "-m", *program]
    if first.startswith("-") and not os.path.exists(first):
        raise click.NoSuchOption(first, ctx=ctx)
    is_package = os.path.exists(os.path.join(first, "__main__.py"))
    if first.endswith(".py") and not os.path.exists(first):
        raise CommandError(f"no such file: {first}")
    is_script = first.endswith(".py") and os.path.isfile(first)
    return [sys.executable, *program] if is_script or is_package else list(program)
