"""``pmapx explain``: the page of an error's, a rule's or a finding's code."""

import difflib

import click
from click.shell_completion import CompletionItem

from pmapx._src import errors
from pmapx._src.audit.findings import all_findings
from pmapx._src.cli._terminal import colour, fail
from pmapx._src.lint import rules

# A code is PMX and three digits; what has less than this in common with any is no slip of one.
_LIKE = 0.5


def _beginning(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """The codes that begin so, for a shell that completes one."""
    titles = {code: page.partition("\n")[0].partition(" ")[2] for code, page in _pages().items()}
    found = sorted(code for code in titles if code.startswith(text.upper()))
    return [CompletionItem(code, help=titles[code]) for code in found]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_beginning)
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
        click.echo(click.style(title, bold=True), color=colour(None))
        click.echo(rest)
    else:
        closest = sorted(sorted(pages), key=lambda known: -_likeness(known, code))[:3]
        if _likeness(closest[0], code) < _LIKE:
            fail(ctx, f"no code {code!r}; pmapx explain lists them all")
        fail(ctx, f"no code {code!r}; closest are {', '.join(closest)}")


def _pages() -> dict[str, str]:
    """The page of every code."""
    pages = {code: errors.explain(code) for code in errors.CODES}
    pages |= {code: rule.page() for code, rule in rules.all_rules().items()}
    return pages | {code: finding.page() for code, finding in all_findings().items()}


def _likeness(known: str, code: str) -> float:
    return difflib.SequenceMatcher(None, known, code.upper()).ratio()
