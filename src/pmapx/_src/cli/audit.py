"""``pmapx audit``: replication, communication and memory of a program's pmapped functions."""

from __future__ import annotations

import os
import tempfile

import click

from pmapx._src.audit.running import merge_reports
from pmapx._src.cli._terminal import fail
from pmapx._src.source.rewriting import atomic_write
from pmapx._src.watch.command import INSTALL, run

HOOKS = (INSTALL, "pmapx._src.audit.running.listener:start")


@click.command(
    "audit",
    short_help="Report a program's replication, communication and memory.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Run on N virtual CPU devices."
)
@click.option(
    "--topology",
    metavar="T",
    help="Compile for a target topology, such as v5e:16x16; the program itself runs locally.",
)
@click.option(
    "--scaling",
    metavar="T,T,...",
    help="Also compile for each of these, such as v5e:8,64,256, and show what grows.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), help="Write the report as JSON."
)
@click.option(
    "--html", "html_path", type=click.Path(dir_okay=False), help="Write the report as an HTML page."
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
    """Run PROGRAM unchanged, and audit the pmapped functions that it calls.

    Functions made by pmap (in legacy mode, as with pmapx run) or by jax.jit of jax.shard_map are
    analyzed at the first call of each signature; calls, transferred inputs and x[0] are counted
    during the run. The program keeps its output and exit status. The report is printed to standard
    error when it ends, also if it crashes or is interrupted with Ctrl-C.

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
            atomic_write.check(path)
    except atomic_write.UnwritableError as error:
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
                fail(ctx, f"{program[0]} is not executable; {hint}")
            fail(ctx, str(error))
        report = merge_reports.of_records(records, " ".join(program), status)
    try:
        if json_path is not None:
            report.to_json(json_path)
        if html_path is not None:
            report.to_html(html_path)
    except atomic_write.UnwritableError as error:
        fail(ctx, str(error))
    if not quiet:
        click.echo(f"\n{report}", err=True)
    assert status is not None, "there is no timeout"
    # The status that a shell reports for a program that was killed by a signal.
    ctx.exit(status if status >= 0 else 128 - status)
