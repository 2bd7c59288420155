"""``pmapx run``: runs a program written for the original pmap, unchanged."""

import os
import sys

import click

from pmapx._src.distributed import launcher
from pmapx._src.watch.command import RUN_NOTEBOOK


@click.command(
    "run",
    short_help="Run a program unchanged, with the APIs that JAX removed.",
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
    help="Start N processes on this machine, as in a multi-host program.",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="With -n: also write a log file per process to DIR.",
)
@click.option(
    "--stall-report",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With -n: report where each process waits after SECONDS without progress (default 60; "
    "0 disables it).",
)
@click.option(
    "--oversubscribe", is_flag=True, help="Allow mapped axes larger than the number of devices."
)
@click.option("--no-indexing", is_flag=True, help="Leave x[i] to JAX, where it is a collective.")
@click.option("-v", "--verbose", is_flag=True, help="List the replaced names.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as for python -m.")
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
    """Run PROGRAM with its ARGS unchanged, with the APIs that JAX removed.

    jax.pmap is pmapx.pmap, removed functions such as jax.device_put_replicated exist again, and
    x[0] of a pmap output is cheap again. PROGRAM keeps its exit status and receives signals itself.
    Of a notebook, the code cells run in order, without IPython's magics and shell commands.

    With -n, N processes of PROGRAM run on this machine: jax.distributed.initialize() connects them,
    --devices applies to each process, and every line of output starts with the index of its
    process. When one fails, all are stopped, and its traceback is printed last.

    \b
    Examples:
      pmapx run train.py --config=small
      pmapx run --devices 8 -m brax.training.train
      pmapx run -n 4 --devices 2 train.py
      pmapx run -n 4 --devices 2 -- python train.py
      pmapx run train.ipynb
    """
    if not module and _is_python(program):
        module, program, args = _after_python(args)
    if program.startswith("-") and not os.path.exists(program):
        raise click.NoSuchOption(program, ctx=ctx)
    if not module and os.path.isdir(program):
        if not os.path.exists(os.path.join(program, "__main__.py")):
            problem = f"the directory {program!r} has no __main__.py"
            raise click.BadParameter(problem, param_hint="PROGRAM")
    elif not module and not os.path.exists(program):
        is_name = program.replace(".", "").isidentifier() and not program.endswith(".py")
        hint = "; to run a module: pmapx run -m" if is_name else ""
        raise click.BadParameter(f"no such file: {program!r}{hint}", param_hint="PROGRAM")
    if program.endswith(".ipynb") and not module:
        program, args = RUN_NOTEBOOK, (program, *args)
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
        raise click.UsageError("--logs and --stall-report need -n")
    # Replaces this process, so that the program receives signals itself.
    os.execve(sys.executable, command_line, launcher.with_devices(os.environ, devices))


def _is_python(program: str) -> bool:
    """Whether the command includes Python, as in ``pmapx run -- python train.py``."""
    if program in ("python", "python3"):
        return not os.path.exists(program)
    # Links are not resolved: the Python of a virtual environment often links to another one.
    return os.path.abspath(program) == os.path.abspath(sys.executable)


def _after_python(args: tuple[str, ...]) -> tuple[bool, str, tuple[str, ...]]:
    """Returns whether Python runs a module, its name or the file, and the remaining arguments."""
    is_module = args[:1] == ("-m",)
    program, *rest = args[is_module:] or ("-",)
    if program.startswith("-"):
        raise click.BadParameter(
            "pass a file or -m and a module after python", param_hint="PROGRAM"
        )
    return is_module, program, tuple(rest)
