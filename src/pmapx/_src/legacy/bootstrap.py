"""``python -m pmapx._src.legacy.bootstrap [options] program args``: what ``pmapx run`` becomes.

It installs pmapx, and then is the program, as if that had been started by itself.
"""

from __future__ import annotations

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
    """Runs a program with pmapx installed; ``argv`` holds options of ours, its name and its own."""
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
    sys.excepthook = _without_our_frames(sys.excepthook)
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
    """Runs a file as the main module, which stays there for what runs after it."""
    main_module = types.ModuleType("__main__")
    vars(main_module).update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main_module
    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main_module))


def _without_our_frames(hook: Any) -> Any:
    """Returns an excepthook that leaves out the frames that led from us to the program.

    A module that is not there is one line, as with ``python -m``.
    """
    ours = (__file__, shutdown.__file__, runpy.__file__)

    def excepthook(kind: Any, error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and _is_at(trace, ours):
            trace = trace.tb_next
        if trace is None and isinstance(error, ImportError) and _is_missing(error.__cause__):
            print(f"pmapx: cannot run {sys.argv[0]!r}: {error}", file=sys.stderr)
            return
        hook(kind, error.with_traceback(trace), trace)

    return excepthook


def _is_missing(cause: BaseException | None) -> bool:
    return cause is None or isinstance(cause, ModuleNotFoundError)


def _is_at(trace: types.TracebackType, files: tuple[str, ...]) -> bool:
    filename = trace.tb_frame.f_code.co_filename
    return filename in files or filename.startswith("<frozen runpy")


if __name__ == "__main__":
    main(sys.argv[1:])
