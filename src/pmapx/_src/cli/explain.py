"""``pmapx explain``: the page of an error, rule or finding."""

import difflib

import click
from click.shell_completion import CompletionItem

from pmapx._src import errors
from pmapx._src.audit.findings import all_findings
from pmapx._src.cli._terminal import echo, fail
from pmapx._src.lint import rules

# A code is PMX and three digits; less similar text is not a mistyped code.
_MIN_SIMILARITY = 0.5


def _completions(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    titles = {code: page.partition("\n")[0].partition(" ")[2] for code, page in _pages().items()}
    found = sorted(code for code in titles if code.startswith(text.upper()))
    return [CompletionItem(code, help=titles[code]) for code in found]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_completions)
@click.pass_context
def command(ctx: click.Context, code: str | None) -> None:
    """Print the page of a CODE, or list all codes.

    Errors and warnings, rules of check, and findings of audit have codes.

    \b
    Examples:
      pmapx explain PMX101
      pmapx explain 101
      pmapx explain | grep donat
    """
    pages = _pages()
    if code is None:
        for known in sorted(pages):
            click.echo(pages[known].partition("\n")[0])
        return
    full = f"PMX{code}" if code.isdigit() else code.upper()
    if full not in pages:
        similarity = {known: _similarity(known, full) for known in sorted(pages)}
        closest = sorted(similarity, key=lambda known: -similarity[known])[:3]
        if similarity[closest[0]] < _MIN_SIMILARITY:
            fail(ctx, f"no code {code!r}; pmapx explain lists all codes")
        fail(ctx, f"no code {code!r}; the closest are {', '.join(closest)}")
    title, _, rest = pages[full].partition("\n")
    echo(click.style(title, bold=True), None)
    click.echo(rest)


def _pages() -> dict[str, str]:
    pages = {code: errors.explain(code) for code in errors.CODES}
    pages |= {code: rule.page() for code, rule in rules.all_rules().items()}
    return pages | {code: finding.page() for code, finding in all_findings().items()}


def _similarity(known: str, code: str) -> float:
    return difflib.SequenceMatcher(None, known, code).ratio()
