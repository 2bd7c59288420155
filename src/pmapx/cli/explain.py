"""``pmapx explain``: the page of an error's or a rule's code."""

import difflib

import click

from pmapx import errors
from pmapx.migrate import rules


@click.command("explain")
@click.argument("code", required=False)
@click.pass_context
def command(ctx: click.Context, code: str | None) -> None:
    """Print the page of an error's or a rule's CODE.

    Without a CODE, all of them are listed, one a line.

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
    return pages | {code: rule.page() for code, rule in rules.all_rules().items()}


def _likeness(known: str, code: str) -> float:
    return difflib.SequenceMatcher(None, known, code.upper()).ratio()
