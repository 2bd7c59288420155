"""``pmapx run``: a program written for the old pmap, unchanged."""

import os
import sys

import click

from pmapx._src.distributed import launcher


@click.command(
    "run",
    short_help="Run a program as it is, with what JAX removed put back.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="Use N virtual CPU devices."
)
@click.option(
    "-n",
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Start N processes on this machine, as a multi-host program has them.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="With -n: also write one log file per process to DIR.",
)
@click.option(
    "--stall-report",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With -n: report where each process waits after so long without progress (default 60; "
    "0 for never).",
)
@click.option("--oversubscribe", is_flag=True, help="Let maps have more elements than devices.")
@click.option("--no-indexing", is_flag=True, help="Leave x[i] to JAX, which gathers x.")
@click.option("-v", "--verbose", is_flag=True, help="List the names that were replaced.")
@click.option("-m", "module", is_flag=True, help="The program is a module, as for python -m.")
@click.argument("program", type=click.Path())
@click.argument("args", nargs=-1, type=click.Path())
@click.pass_context
def command(
    ctx: click.Context,
    devices: int | None,
    processes: int | None,
    logs: str | None,
    stall_report: float | None,
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

    With -n, so many processes of it run together on this machine: jax.distributed.initialize()
    finds the others, --devices are each process's own, and every line of output has the number of
    its process in front. When one fails, all are stopped, and its traceback is printed last.

    \b
    Examples:
      pmapx run train.py --config=small
      pmapx run --devices 8 -m brax.training.train
      pmapx run -n 4 --devices 2 train.py
      pmapx run -n 4 --devices 2 -- python train.py
    """
    if not module and _is_python(program):
        module, program, args = _after_python(args)
    if program.startswith("-") and not os.path.exists(program):
        raise click.NoSuchOption(program, ctx=ctx)
    if not module and os.path.isdir(program):
        if not os.path.exists(os.path.join(program, "__main__.py")):
            said = f"the folder {program!r} has no __main__.py"
            raise click.BadParameter(said, param_hint="PROGRAM")
    elif not module and not os.path.exists(program):
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
    command_line = [sys.executable, "-m", "pmapx._src.legacy.bootstrap", *given, program, *args]
    if processes is not None:
        status = launcher.launch(
            processes, devices, command_line, logs=logs, stall_report=stall_report
        )
        sys.exit(status)
    if logs is not None or stall_report is not None:
        raise click.UsageError("--logs and --stall-report need -n: they are for several processes")
    # In place of this process: nothing stands between the program and its signals.
    os.execve(sys.executable, command_line, launcher.with_devices(os.environ, devices))


def _is_python(program: str) -> bool:
    """Tells whether people named Python too, as in ``pmapx run -- python train.py``."""
    if program in ("python", "python3"):
        return not os.path.exists(program)
    # Not where the links lead: an environment's Python is often a link to another's.
    return os.path.abspath(program) == os.path.abspath(sys.executable)


def _after_python(args: tuple[str, ...]) -> tuple[bool, str, tuple[str, ...]]:
    """Returns whether Python was given a module, its name or that of a file, and what is left."""
    is_module = args[:1] == ("-m",)
    program, *rest = args[is_module:] or ("-",)
    if program.startswith("-"):
        raise click.BadParameter(
            "after python, give a file or -m and a module", param_hint="PROGRAM"
        )
    return is_module, program, tuple(rest)
