"""``pmapx run``: a program written for the old pmap, unchanged."""

import os
import re
import sys

import click


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Use N virtual CPU devices."
)
@click.option("--oversubscribe", is_flag=True, help="Let maps have more elements than devices.")
@click.option("--no-indexing", is_flag=True, help="Leave x[i] to JAX, which gathers x.")
@click.option("-v", "--verbose", is_flag=True, help="List the names that were replaced.")
@click.option("-m", "module", is_flag=True, help="The program is a module, as for python -m.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: int | None,
    oversubscribe: bool,
    no_indexing: bool,
    verbose: bool,
    module: bool,
    program: str,
    args: tuple[str, ...],
) -> None:
    """Run PROGRAM with its ARGS as it is, with all that JAX removed put back.

    jax.pmap is pmapx's, jax.device_put_replicated and its kin are there, and x[0] of what came out
    of a pmap is cheap again. Its exit status and signals are the program's own.

    \b
    Examples:
      pmapx run train.py --config=small
      pmapx run --devices 8 -m brax.training.train
    """
    if not module and not os.path.exists(program):
        is_name = program.replace(".", "").isidentifier() and not program.endswith(".py")
        hint = "; to run a module: pmapx run -m" if is_name else ""
        raise click.BadParameter(f"there is no file {program!r}{hint}", param_hint="PROGRAM")
    flags = {
        "--oversubscribe": oversubscribe,
        "--no-indexing": no_indexing,
        "--verbose": verbose,
        "-m": module,
    }
    given = [flag for flag, is_given in flags.items() if is_given]
    command_line = [sys.executable, "-m", "pmapx.legacy.bootstrap", *given, program, *args]
    # In place of this process: nothing stands between the program and its signals.
    os.execve(sys.executable, command_line, environment(os.environ, devices))


def environment(inherited: "os._Environ[str]", devices: int | None) -> dict[str, str]:
    """Returns the environment for a program that is to see so many virtual CPU devices."""
    chosen = dict(inherited)
    if devices is not None:
        flag = "--xla_force_host_platform_device_count"
        others = re.sub(rf"{flag}=\S*", "", chosen.get("XLA_FLAGS", "")).strip()
        chosen["XLA_FLAGS"] = f"{others} {flag}={devices}".strip()
        chosen["JAX_PLATFORMS"] = "cpu"
    return chosen
