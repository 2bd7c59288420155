"""Where in the user's code an equation comes from."""

import os
import re
import traceback

from jax.extend import source_info_util
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from pmapx._src.errors.base import package_folders

_PACKAGE = package_folders("pmapx")
_LIBRARIES = re.compile(r"[\\/](site|dist)-packages[\\/]")
_FRAME = re.compile(r"(?P<path>.+?):(?P<line>\d+)(:(?P<column>\d+))? \(")
_DEPTH = 100
Location = tuple[str | None, int | None, int | None]
"""A file, a line from 1 and a column from 0, as far as they are known."""


def place(eqn: JaxprEqn) -> str:
    """Names an equation, as in "varies since `axis_index` at train.py:41"."""
    line = line_of(eqn)
    name = f"`{eqn.primitive.name}`"
    return name if line is None else f"{name} at {line}"


def line_of(eqn: JaxprEqn) -> str | None:
    """Returns the line, as ``train.py:41``: the user's own that led to a library's, if any did."""
    path, line, _ = location_of(eqn)
    return None if path is None else f"{os.path.basename(path)}:{line}"


def location_of(eqn: JaxprEqn) -> Location:
    """Returns the file, the line and the column: the user's own that led to a library's, if any."""
    frames = _frames(eqn)
    own = [frame for frame in frames if not _is_a_librarys(frame[0])]
    return (own or frames)[0] if frames else (None, None, None)


def library_of(eqn: JaxprEqn) -> str | None:
    """Returns the file of a library that the user's line called, if the equation is in one."""
    frames = [frame for frame in _frames(eqn) if not frame[0].startswith(_PACKAGE)]
    return frames[0][0] if frames and _is_a_librarys(frames[0][0]) else None


def line_of_error(error: BaseException) -> str | None:
    """Returns the innermost of the user's lines that an exception passed through."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.isfile(frame.filename) and not _is_a_librarys(frame.filename)
    ]
    return f"{os.path.basename(frames[-1][0])}:{frames[-1][1]}" if frames else None


def first_use(body: Jaxpr, argument: int) -> str | None:
    """Returns the user's line of the first equation that takes an argument of a body."""
    lines = (line_of(eqn) for eqn in body.eqns if body.invars[argument] in eqn.invars)
    return next(filter(None, lines), None)


def is_added(eqn: JaxprEqn) -> bool:
    """Whether pmapx added an equation to those of the user's function."""
    frames = _frames(eqn)
    return bool(frames) and frames[0][0].startswith(_PACKAGE)


def lines_behind(body: Jaxpr) -> list[str | None]:
    """Returns the user's line behind each output of a body; what pmapx added is passed over."""
    makers = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    lines = []
    for atom in body.outvars:
        line = None
        while not isinstance(atom, Literal) and atom in makers:
            eqn = makers[atom]
            if not is_added(eqn) or not eqn.invars:
                line = line_of(eqn)
                break
            atom = eqn.invars[0]
        lines.append(line)
    return lines


def _is_a_librarys(path: str) -> bool:
    return path.startswith(_PACKAGE) or _LIBRARIES.search(path) is not None


def _frames(eqn: JaxprEqn) -> list[tuple[str, int, int | None]]:
    """Returns the places behind an equation, innermost first; none of them JAX's."""
    # "/path/train.py:41:8 (step)" a line, outermost first; empty when no frame is the user's.
    summary = source_info_util.summarize(eqn.source_info, num_frames=_DEPTH)
    found = [_FRAME.match(frame) for frame in reversed(summary.splitlines())]
    return [
        (frame["path"], int(frame["line"]), int(frame["column"]) if frame["column"] else None)
        for frame in found
        if frame
    ]
