"""``pmapx verify``: runs a program before and after migration, and compares the results."""

import collections
import json
import os

import click

from pmapx._src.cli._command_line import WithCommandLine, verify_options
from pmapx._src.cli._terminal import (
    Progress,
    color_option,
    echo,
    exclude_option,
    format_option,
    next_step,
)
from pmapx._src.pages import formatting
from pmapx._src.source.command_error import CommandError
from pmapx._src.verify.compare.compare_arrays import Tolerance
from pmapx._src.verify.compare.compare_calls import GIVEN
from pmapx._src.verify.compare.result import (
    DIFFERENT,
    UNVERIFIED,
    VERIFIED,
    SiteResult,
    Verification,
)
from pmapx._src.verify.verify import verify

# Shells complete directories for it.
DIRECTORY = click.Path(file_okay=False)
# Lines of the output of a failed command.
_SHOWN = 15
_COLORS = {VERIFIED: "green", DIFFERENT: "red", UNVERIFIED: "yellow"}


@click.command(
    "verify",
    cls=WithCommandLine,
    short_help="Run a program before and after migration, and compare all calls.",
)
@click.option("--before", required=True, type=DIRECTORY, metavar="DIR", help="The code with pmap.")
@click.option("--after", required=True, type=DIRECTORY, metavar="DIR", help="The migrated code.")
@verify_options
@exclude_option
@format_option("text", "json")
@color_option
@click.pass_context
def command(
    ctx: click.Context,
    before: str,
    after: str,
    devices: int | None,
    rtol: float | None,
    atol: float | None,
    calls: int,
    timeout: float,
    strict: bool,
    exclude: tuple[str, ...],
    layout: str,
    color: bool | None,
) -> None:
    """Run a command on two versions of a program, and compare the calls of pmapped functions.

    The command runs once in each directory, with the same virtual devices and hash seed, the old
    version in legacy mode. The inputs and outputs of every function that was pmapped before, or
    uses shard_map now, are compared: bitwise equal, equal within a tolerance, or different, with
    the first call and leaf that differ, and by how much. In a multi-process program (pmapx run -n),
    each process is compared with its counterpart. Exits with 0 if all sites that ran are verified,
    1 if one is different, none ran, or one is unverified with --strict, 2 on an error.

    \b
    Examples:
      pmapx verify --before old --after new -- python train.py --steps 3
      pmapx verify --before old --after new --strict -- python -m lab.train
      pmapx verify --before old --after new -- pmapx run -n 2 train.py
      pmapx verify --before old --after new --rtol 0 --atol 0 -- python train.py
    """
    for directory in (before, after):
        if not os.path.isdir(directory):
            raise CommandError(f"no such directory: {directory}")
    if not ctx.obj:
        raise CommandError("pass the command to run after --, as in: -- python train.py --steps 3")
    with Progress("Running the program ({})") as progress:
        found = verify(
            ctx.obj,
            before,
            after,
            devices=devices,
            calls=calls,
            tolerance=Tolerance(rtol, atol),
            timeout=timeout,
            exclude=exclude,
            progress=progress.show,
        )
    if layout == "json":
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        echo(as_text(found, is_strict=strict), color)
        next_step(after_verification(found, is_strict=strict), color)
    ctx.exit(found.exit_code(is_strict=strict))


def as_text(found: Verification, *, is_strict: bool = False) -> str:
    """Returns the table, what to look at first, and last the verdict, with colors.

    >>> from pmapx._src.verify.compare.result import EQUAL
    >>> site = SiteResult("train.py", 12, "step", VERIFIED, EQUAL, calls=3)
    >>> print(click.unstyle(as_text(Verification((site,)))))
    site         function  state     calls  detail
    train.py:12  step      verified      3  equal to the bit
    Verified: 1 verified, 0 different, 0 unverified.
    """
    lines = [click.style(f"  {line}", dim=True) for line in found.output.splitlines()[-_SHOWN:]]
    lines += [click.style(f"error: {text}", fg="red") for text in found.errors]
    lines += [click.style(f"different: {text}", fg="red") for text in found.differences]
    if found.sites:
        lines += _table(found.sites)
    first = found.first
    if first is not None and len(found.sites) > 1:
        lines.append(f"First difference: {first.function} at {first.place}: {first.detail}")
    if first is not None and GIVEN in first.detail:
        lines.append(
            "No earlier call differs: does the program use unseeded random data, or read files "
            "that the other run wrote?"
        )
    if any(site.agreement.startswith("equal within") for site in found.sites):
        lines.append(f"Tolerance: {found.tolerance}.")
    return "\n".join([*lines, *found.notes, _verdict(found, is_strict)])


def after_verification(found: Verification, *, is_strict: bool = False) -> str:
    """Returns what to do with a verdict."""
    unverified = [site for site in found.sites if site.state == UNVERIFIED]
    reach = f"run a command that reaches {unverified[0].place}" if unverified else ""
    if not found.exit_code(is_strict=is_strict):
        return f"{reach}, or commit the migrated code." if reach else "commit the migrated code."
    if found.first is not None:
        return f"compare {found.first.function} at {found.first.place} in both versions."
    if found.has_differences or found.errors:
        return "run the command by itself in both folders, and fix the error above."
    return f"{reach or 'run a command that calls the pmapped functions'}."


def _verdict(found: Verification, is_strict: bool) -> str:
    counts = collections.Counter(site.state for site in found.sites)
    totals = ", ".join(f"{counts[state]} {state}" for state in _COLORS)
    code = found.exit_code(is_strict=is_strict)
    if not code:
        return click.style(f"Verified: {totals}.", fg="green")
    if found.has_differences:
        return click.style(f"Different: {totals}.", fg="red")
    if code == 2:
        why = "the runs cannot be compared"
    elif not counts[VERIFIED]:
        why = "nothing was compared"
    else:
        why = "--strict allows no unverified site"
    return click.style(f"Not verified, {why}: {totals}.", fg="red")


def _table(sites: tuple[SiteResult, ...]) -> list[str]:
    rows = [(site.place, site.function, site.state, str(site.calls or "-")) for site in sites]
    heads = ("site", "function", "state", "calls")
    wide = [max(len(row[column]) for row in [heads, *rows]) for column in range(4)]
    head = "  ".join(f"{word:<{width}}" for word, width in zip(heads, wide, strict=True))
    lines = [click.style(f"{head}  detail", bold=True)]
    for site, (place, function, state, calls) in zip(sites, rows, strict=True):
        shown = click.style(f"{state:<{wide[2]}}", fg=_COLORS[state])
        detail = "; ".join(part for part in (site.agreement, site.detail) if part)
        lines.append(
            f"{place:<{wide[0]}}  {function:<{wide[1]}}  {shown}  {calls:>{wide[3]}}  {detail}"
        )
        lines += [f"{'':<{wide[0]}}    note: {note}" for note in formatting.first(site.notes, 3)]
    return lines
