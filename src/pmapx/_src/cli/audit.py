"""``pmapx audit``: what a program's mapped functions replicate, send and hold."""

from __future__ import annotations

import os
import tempfile

import click

from pmapx._src.audit.report import merge_reports
from pmapx._src.cli._terminal import fail
from pmapx._src.pages import writing
from pmapx._src.watch.command import INSTALL, run

HOOKS = (INSTALL, "pmapx._src.audit.running.listener:start")


@click.command(
    "audit",
    short_help="Show what a program's maps replicate, send and hold.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Run on N virtual CPU devices."
)
@click.option(
    "--topology",
    metavar="T",
    help="Compile for devices that are not there, such as v5e:16x16; the program itself runs here.",
)
@click.option(
    "--scaling",
    metavar="T,T,...",
    help="Compile for each of these too, such as v5e:8,64,256, and show what grows.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), help="Write the report as JSON."
)
@click.option(
    "--html", "html_path", type=click.Path(dir_okay=False), help="Write the report as a page."
)
@click.option("--quiet", is_flag=True, help="Print no report.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def command(
    ctx: click.Context,
    devices: int | None,
    topology: str | None,
    scaling: str | None,
    json_path: str | None,
    html_path: str | None,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM as it is, and audit the mapped functions that it calls.

    What pmap (in the legacy mode, as with pmapx run) and jax.jit of jax.shard_map made is examined
    at the first call of each signature; calls, moved inputs and x[0] are counted over the run. The
    program's output and exit status stay its own; the report comes on standard error when it has
    ended, also if it crashed or was stopped with Ctrl-C.

    \b
    Examples:
      pmapx audit -- python train.py --config=small
      pmapx audit --devices 8 --html audit.html -- python train.py
      pmapx audit --topology v5e:16x16 --json audit.json -- python -m trainer
      pmapx audit --scaling v5e:8,64,256 -- python train.py
    """
    if program[0].startswith("-"):
        raise click.NoSuchOption(program[0], ctx=ctx)
    try:
        for path in filter(None, (json_path, html_path)):
            writing.check(path)
    except writing.UnwritableError as error:
        fail(ctx, str(error))
    if topology is not None or scaling is not None:
        from pmapx._src.audit.topology.devices import (  # Imports JAX: not for every command.
            parse,
            several,
        )

        try:
            several(scaling or "")
            if topology is not None:
                parse(topology)
        except ValueError as error:
            fail(ctx, " ".join(str(error).partition("\n  code:")[0].split()))
    asked = {"PMAPX_AUDIT_TOPOLOGY": topology or "", "PMAPX_AUDIT_SCALING": scaling or ""}
    env = {**os.environ, **asked}
    with tempfile.TemporaryDirectory(prefix="pmapx-audit-") as records:
        try:
            status = run(program, HOOKS, records, devices=devices, env=env)
        except (FileNotFoundError, PermissionError) as error:
            if os.path.exists(program[0]):
                hint = f"for Python files: pmapx audit -- python {program[0]}"
                fail(ctx, f"{program[0]} is not a program; {hint}")
            fail(ctx, str(error))
        report = merge_reports.of_records(records, " ".join(program), status)
    try:
        if json_path is not None:
            report.to_json(json_path)
        if html_path is not None:
            report.to_html(html_path)
    except writing.UnwritableError as error:
        fail(ctx, str(error))
    if not quiet:
        click.echo(f"\n{report}", err=True)
    assert status is not None, "there is no timeout"
    # A program that a signal ended has the status that a shell gives it.
    ctx.exit(status if status >= 0 else 128 - status)
