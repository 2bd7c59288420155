"""``pmapx explain``: the page of an error code."""

import difflib

import click

from pmapx import errors


@click.command("explain")
@click.argument("code", required=False)
@click.pass_context
def command(ctx: click.Context, code: str | None) -> None:
    """Print the page of an error or warning CODE, or list all codes."""
    if code is None:
        for known in sorted(errors.CODES):
            click.echo(_title(known))
    elif code.upper() in errors.CODES:
        title, _, rest = errors.explain(code).partition("\n")
        click.echo(click.style(title, bold=True))
        click.echo(rest)
    else:
        closest = sorted(sorted(errors.CODES), key=lambda known: -_likeness(known, code))[:3]
        click.echo(f"pmapx: no code {code!r}; closest are {', '.join(closest)}", err=True)
        ctx.exit(2)


def _likeness(known: str, code: str) -> float:
    return difflib.SequenceMatcher(None, known, code.upper()).ratio()


def _title(code: str) -> str:
    return errors.explain(code).partition("\n")[0]
