"""``pmapx explain``: the page of an error's, a rule's or a finding's code."""

import difflib

import click

from pmapx import errors
from pmapx.audit.findings import all_findings
from pmapx.migrate import rules


@click.command("explain")
@click.argument("code", required=False)
@click.pass_context
def command(ctx: click.Context, code: str | None) -> None:
    """Print the page of a CODE, or list all codes.

    Codes are those of errors and warnings, of the rules of check, and of the findings of audit.

    \b
    Examples:
      pmapx explain PMX101
      pmapx explain | grep donat
    """
    pages = _pages()
    if code is None:
        for known in sorted(pages):
            click.echo(pages[known].partition("\n")[0])
    elif code.upper() in pages:
        title, _, rest = pages[code.upper()].partition("\n")
        click.echo(click.style(title, bold=True))
        click.echo(rest)
    else:
        closest = sorted(sorted(pages), key=lambda known: -_likeness(known, code))[:3]
        click.echo(f"pmapx: no code {code!r}; closest are {', '.join(closest)}", err=True)
        ctx.exit(2)


def _pages() -> dict[str, str]:
    """The page of every code."""
    pages = {code: errors.explain(code) for code in errors.CODES}
    pages |= {code: rule.page() for code, rule in rules.all_rules().items()}
    return pages | {code: finding.page() for code, finding in all_findings().items()}


def _likeness(known: str, code: str) -> float:
    return difflib.SequenceMatcher(None, known, code.upper()).ratio()
