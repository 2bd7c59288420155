"""``pmapx info``: what a bug report needs."""

from __future__ import annotations

import json

import click

from pmapx._src.cli._about import about, as_text


@click.command("info")
@click.option("--json", "is_json", is_flag=True, help="As JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the devices.",
)
def command(is_json: bool, timeout: float) -> None:
    """Show versions, devices and what was detected, for bug reports.

    \b
    Examples:
      pmapx info
      pmapx info --json > info.json
    """
    facts = about(timeout)
    click.echo(json.dumps(facts, indent=2) if is_json else as_text(facts))
