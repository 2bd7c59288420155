"""``pmapx info``: the environment, for bug reports."""

import json
import sys

import click

from pmapx._src.cli._about import about, as_text
from pmapx._src.cli._terminal import next_step


@click.command("info")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the devices.",
)
def command(is_json: bool, timeout: float) -> None:
    """Show versions, devices and the detected environment, for bug reports.

    \b
    Examples:
      pmapx info
      pmapx info --json > info.json
    """
    facts = about(timeout)
    click.echo(json.dumps(facts, indent=2) if is_json else as_text(facts))
    if not is_json and sys.stdout.isatty():
        next_step("paste it into your bug report.")
