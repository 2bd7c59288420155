"""The text of a verification: one line per site, and what to look at first."""

from __future__ import annotations

import collections

import click

from pmapx._src.verify.compare.compare_calls import GIVEN
from pmapx._src.verify.compare.result import (
    DIFFERENT,
    UNVERIFIED,
    VERIFIED,
    SiteResult,
    Verification,
)

# Lines of the output of a failed command.
_SHOWN = 15
_COLORS = {VERIFIED: "green", DIFFERENT: "red", UNVERIFIED: "yellow"}


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
        lines += [f"{'':<{wide[0]}}    note: {note}" for note in site.notes[:3]]
        if len(site.notes) > 3:
            lines.append(f"{'':<{wide[0]}}    note: and {len(site.notes) - 3} more")
    return lines
