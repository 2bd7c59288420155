"""Where in its source the running program is: the one walk up the stack."""

import os
import sys
import types
from collections.abc import Iterator

from pmapx._src.errors.base import package_folders

Span = tuple[str, int, int, int, int]
"""A file, and the first and last line and column of an expression, as ``ast`` counts them."""


_LIBRARIES = package_folders("jax", "pmapx")


def is_library(frame: types.FrameType) -> bool:
    """Returns whether a frame belongs to JAX or pmapx, and not to the program."""
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def callers() -> Iterator[types.FrameType]:
    """Yields the frames of the program that led here, the innermost first."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not is_library(frame):
            yield frame
        frame = frame.f_back


def line() -> str:
    """Returns the line of the program that led here, as ``file:line``."""
    frame = sys._getframe()
    for frame in callers():
        if not frame.f_code.co_filename.startswith("<"):  # Code without a file.
            break
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}"


def span(frame: types.FrameType) -> Span:
    """Returns the expression that a frame is evaluating."""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    first, last, column, end_column = (part or 0 for part in positions)
    return os.path.realpath(frame.f_code.co_filename), first, column, last, end_column
