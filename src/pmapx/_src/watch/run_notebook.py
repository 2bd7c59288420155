"""Runs the code cells of a notebook as one program: what ``python train.ipynb`` means here.

IPython's own lines are left out, as ``pmapx check`` does, except for what ``%time`` runs. Lines are
those of all cells together.
"""

import builtins
import contextlib
import linecache
import os
import sys
import types


def main() -> None:
    """Runs the notebook that the first argument names; the others are its own."""
    path = os.path.abspath(sys.argv[1])
    sys.path.append(os.environ.get("PMAPX_HOME", sys.path[0]))
    from pmapx._src.source import files, notebooks
    from pmapx._src.source.discovery import Unreadable

    with open(path, "rb") as opened:
        data = opened.read()
    # What is not a notebook is reported when it is read.
    with contextlib.suppress(ValueError):
        data = notebooks.with_timed_lines(data)
    source = files.parse(path, data)
    if isinstance(source, Unreadable):
        raise SystemExit(f"{path}: {source.reason}")
    if source.problems:
        number, reason, _ = source.problems[0]
        raise SystemExit(f"{path}: cell {number}: {reason}")
    program = types.ModuleType("__main__")
    program.__file__ = path
    # IPython's display, for a program that has no screen.
    vars(program)["display"] = builtins.print
    sys.modules["__main__"] = program
    sys.argv = [path, *sys.argv[2:]]
    sys.path[0] = os.path.dirname(path)
    lines = source.text.splitlines(keepends=True)
    linecache.cache[path] = (len(source.text), None, lines, path)
    exec(compile(source.text, path, "exec"), vars(program))


if __name__ == "__main__":
    main()
