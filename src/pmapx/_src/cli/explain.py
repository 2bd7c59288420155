"""``pmapx explain``: the page of an error, rule or finding."""

import difflib
import re
import sys

import click
from click.shell_completion import CompletionItem

from pmapx._src import errors
from pmapx._src.audit.findings import all_findings
from pmapx._src.cli._terminal import next_step, resolve_color
from pmapx._src.lint import rules
from pmapx._src.source.command_error import CommandError

# A code is PMX and three digits; less similar text is not a mistyped code.
_MIN_SIMILARITY = 0.5


def _completions(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    titles = {code: page.partition("\n")[0].partition(" ")[2] for code, page in _pages().items()}
    found = sorted(code for code in titles if code.startswith(text.upper()))
    return [CompletionItem(code, help=titles[code]) for code in found]


@click.command("explain")
@click.argument("code", required=False, shell_complete=_completions)
def command(code: str | None) -> None:
    """Explain the CODE of an error, warning, rule or finding, or list all codes.

    On a terminal the page is formatted; in a pipe it is plain text.

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
        if sys.stdout.isatty():
            next_step("pmapx explain CODE prints one page.")
        return
    full = f"PMX{code}" if code.isdigit() else code.upper()
    if full not in pages:
        likeness = {k: difflib.SequenceMatcher(None, k, full).ratio() for k in sorted(pages)}
        closest = sorted(likeness, key=lambda known: -likeness[known])[:3]
        is_mistyped = likeness[closest[0]] >= _MIN_SIMILARITY
        listed = f"the closest are {', '.join(closest)}"
        hint = listed if is_mistyped else "pmapx explain lists all codes"
        raise CommandError(f"no code {code!r}; {hint}")
    color = resolve_color(None)
    if sys.stdout.isatty() if color is None else color:
        _print_formatted(pages[full])
        if full in rules.all_rules():
            next_step(f"pmapx check . --select {full} lists the places in your code.")
        elif full in all_findings():
            next_step("pmapx audit PROGRAM shows where it occurs in a program.")
        else:
            next_step("change the call as the error's `fix` line suggests.")
    else:
        click.echo(pages[full])


def _print_formatted(page: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    title, _, rest = page.partition("\n")
    console = Console(force_terminal=True)
    console.print(title.replace("``", ""), style="bold", markup=False, highlight=False)
    # Docstrings write code between two backticks, Markdown between one.
    console.print(Markdown(re.sub("(?<!`)``(?!`)", "`", rest), code_theme="ansi_light"))


def _pages() -> dict[str, str]:
    pages = {code: errors.explain(code) for code in errors.CODES}
    pages |= {code: rule.page() for code, rule in rules.all_rules().items()}
    return pages | {code: finding.page() for code, finding in all_findings().items()}
