"""``python -m pmapx._src.legacy.bootstrap [options] program args``: what ``pmapx run`` executes.

It calls ``install()``, and then runs the program in the same process as its main module.
"""

import builtins
import functools
import io
import os
import runpy
import sys
import types
from typing import Any

import pmapx
from pmapx._src import fastpath
from pmapx._src.distributed import initialize, launcher, shutdown


def main(argv: list[str]) -> None:
    """Runs a program in legacy mode; ``argv`` is our options, the program and its arguments."""
    options = set()
    while argv and argv[0] in ("--oversubscribe", "--no-indexing", "--verbose", "-m"):
        options.add(argv.pop(0))
    if "PMAPX_LAUNCHED" in os.environ:
        fastpath.gloo_on_loopback()  # All processes are on this machine.
    if launcher.PLAIN not in os.environ:
        installed = pmapx.install(
            indexing="--no-indexing" not in options, oversubscribe="--oversubscribe" in options
        )
        if "--verbose" in options:
            print(installed, file=sys.stderr)
    sys.excepthook = _without_pmapx_frames(sys.excepthook)
    sys.argv = argv
    initialize.extend_jax_initialize()
    shutdown.run_guarded(functools.partial(_run, argv[0], as_module="-m" in options))


def _run(program: str, *, as_module: bool) -> None:
    if as_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif os.path.isdir(program):
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
        _run_file(program)


def _run_file(path: str) -> None:
    """Runs a file as the main module, which stays in place for atexit handlers and pickling."""
    main_module = types.ModuleType("__main__")
    vars(main_module).update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main_module
    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main_module))


def _without_pmapx_frames(hook: Any) -> Any:
    """Returns an excepthook that omits the frames of pmapx.

    A missing module is reported in one line, as ``python -m`` does.
    """

    def show(kind: Any, error: BaseException, trace: types.TracebackType | None) -> None:
        is_missing = isinstance(error.__cause__, ModuleNotFoundError | None)
        if trace is None and isinstance(error, ImportError) and is_missing:
            print(f"pmapx: cannot run {sys.argv[0]!r}: {error}", file=sys.stderr)
        else:
            hook(kind, error, trace)

    return shutdown.without_pmapx_frames(show)


if __name__ == "__main__":
    main(sys.argv[1:])
