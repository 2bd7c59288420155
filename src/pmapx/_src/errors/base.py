"""The base classes of errors and warnings, and the registry of their codes."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import warnings
from typing import Any, ClassVar, cast

CODES: dict[str, type[Coded]] = {}


def explain(code: str) -> str:
    """Returns the page of an error or warning code.

    >>> import pmapx.errors
    >>> print(explain("PMX108").splitlines()[0])
    PMX108 NothingMapped: the size of the mapped axis is unknown.
    """
    return page(CODES[code.upper()])


def page(cls: Any) -> str:
    """Returns the docstring of a class that has a code, with its code and name in front."""
    text = inspect.cleandoc(cls.__doc__ or "")
    first = text.partition(" ")[0]
    # A name such as PmapSharding or JAX keeps its case.
    text = text if first[1:].lower() != first[1:] else text[0].lower() + text[1:]
    return f"{cls.code} {cls.__name__}: {text}"


def warn(warning: PmapxWarning) -> None:
    """Issues a warning at the user's line that led here, not at one inside pmapx or JAX."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(warning, stacklevel=level + 1)
    except PmapxWarning:
        if not warning.is_advice or _is_error_by_name(warning):
            raise
        # jax.pmap does not warn about this: a blanket ``-W error`` must not stop the program.
        warnings.showwarning(warning, type(warning), frame.f_code.co_filename, frame.f_lineno)


def _is_error_by_name(warning: PmapxWarning) -> bool:
    """Whether a filter that names a pmapx warning class turns this one into an error."""
    return any(
        each[0] == "error"
        and issubclass(cast(type, each[2]), PmapxWarning)
        and isinstance(warning, each[2])
        for each in warnings.filters
    )


def _is_internal(filename: str) -> bool:
    return filename.startswith((*package_folders("pmapx._src", "jax"), "<"))


@functools.cache
def package_folders(*names: str) -> tuple[str, ...]:
    """Returns the folders of packages, with a separator at the end, to recognize their files by."""
    files = (str(importlib.import_module(name).__file__) for name in names)
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files)


def shown(value: Any) -> str:
    """Returns the repr of a user's value, shortened to fit a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Coded(Exception):
    """An error or a warning with a code and a fix."""

    code: ClassVar[str] = ""
    is_advice: ClassVar[bool] = False

    def __init_subclass__(cls, code: str = "", *, is_advice: bool = False) -> None:
        super().__init_subclass__()
        cls.__module__ = "pmapx.errors"  # The public module, whichever file defines the class.
        cls.code, cls.is_advice = code, is_advice
        if code in CODES:
            raise AssertionError(f"{code} is already used by {CODES[code].__name__}")
        if code:
            CODES[code] = cls

    def __init__(self, problem: str, *, fix: str) -> None:
        code = self.code
        super().__init__(f"{problem}\n  fix: {fix}\n  code: {code} (see `pmapx explain {code}`)")


class PmapxError(Coded):
    """Base class of all pmapx errors; catch it to tell them from JAX's own.

    >>> import pmapx
    >>> try:
    ...     pmapx.pmap(lambda x: x)(3.0)
    ... except pmapx.PmapxError as error:
    ...     print(error.code, isinstance(error, ValueError))
    PMX103 True
    """


class PmapxWarning(Coded, UserWarning):
    """Base class of all pmapx warnings; filter on it to silence them or turn them into errors.

    Warnings that have no counterpart in ``jax.pmap`` are advice: they become errors only under a
    filter that names them or this class. Under a blanket ``python -W error`` they are only shown.

    >>> import warnings, pmapx
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", pmapx.PmapxWarning)
    """
