"""``pmapx completion``: shell completion of commands and options."""

import click
from click import shell_completion


@click.command("completion", short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL: bash, zsh or fish.

    \b
    Examples:
      pmapx completion bash >> ~/.bashrc
      pmapx completion zsh >> ~/.zshrc
      pmapx completion fish > ~/.config/fish/completions/pmapx.fish
    """
    completion = shell_completion.get_completion_class(shell)
    assert completion is not None, f"click has no completion for {shell}"
    # Not its source(), which runs the shell to query its version.
    made = completion(ctx.find_root().command, {}, "pmapx", "_PMAPX_COMPLETE")
    click.echo(made.source_template % made.source_vars())
    click.echo("# Next: start a new shell.")
