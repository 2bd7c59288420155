"""What errors and warnings are made of: a code, a message with its fix, and a page."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from typing import ClassVar, cast

import jax

CODES: dict[str, type[PmapxError] | type[PmapxWarning]] = {}


def _register(cls: type, code: str) -> None:
    cls.__module__ = "pmapx.errors"  # Where users know it from, whichever file it is in.
    if not code:
        return
    if code in CODES:
        raise AssertionError(f"{code} is taken by {CODES[code].__name__}")
    CODES[code] = cls


def _compose(code: str, problem: str, fix: str) -> str:
    return f"{problem}\n  fix: {fix}\n  code: {code} (`pmapx explain {code}` says more)"


def explain(code: str) -> str:
    """Returns the page of an error or warning code.

    >>> import pmapx.errors
    >>> print(explain("PMX108").splitlines()[0])
    PMX108 NothingMapped: nothing says how large the mapped axis is.
    """
    cls = CODES[code.upper()]
    page = inspect.cleandoc(cls.__doc__ or "")
    return f"{cls.code} {cls.__name__}: {page[0].lower()}{page[1:]}"


def warn(warning: PmapxWarning) -> None:
    """Issues a warning at the line of the user's that led here, not at one of pmapx or JAX."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(warning, stacklevel=level + 1)
    except PmapxWarning:
        if not warning.is_advice or _is_asked_for(warning):
            raise
        # jax.pmap does not warn of this: ``-W error`` is no reason to stop what it runs.
        warnings.showwarning(warning, type(warning), frame.f_code.co_filename, frame.f_lineno)


def _is_asked_for(warning: PmapxWarning) -> bool:
    """Says whether a filter names warnings of pmapx, and asks for errors."""
    return any(
        each[0] == "error"
        and issubclass(cast(type, each[2]), PmapxWarning)
        and isinstance(warning, each[2])
        for each in warnings.filters
    )


def _is_internal(filename: str) -> bool:
    return filename.startswith(_INTERNAL) or filename.startswith("<")


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INTERNAL = (_PACKAGE + os.sep, os.path.dirname(os.path.abspath(jax.__file__)) + os.sep)


class PmapxError(Exception):
    """Base of all errors of pmapx; catch it to tell them from JAX's own.

    >>> import pmapx
    >>> try:
    ...     pmapx.pmap(lambda x: x)(3.0)
    ... except pmapx.PmapxError as error:
    ...     print(error.code, isinstance(error, ValueError))
    PMX103 True
    """

    code: ClassVar[str] = ""

    def __init_subclass__(cls, code: str = "") -> None:
        """Puts the class into ``CODES`` under its code."""
        super().__init_subclass__()
        cls.code = code
        _register(cls, code)

    def __init__(self, problem: str, *, fix: str) -> None:
        """Composes the message from what is wrong and how to mend it."""
        super().__init__(_compose(self.code, problem, fix))


class PmapxWarning(UserWarning):
    """Base of all warnings of pmapx; filter on it to silence or to raise them.

    Those that ``jax.pmap`` has no counterpart of are advice: they are raised where a filter names
    them or this class, and are only shown where all warnings are errors (``python -W error``).

    >>> import warnings, pmapx
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", pmapx.PmapxWarning)
    """

    code: ClassVar[str] = ""
    is_advice: ClassVar[bool] = False

    def __init_subclass__(cls, code: str = "", *, is_advice: bool = False) -> None:
        """Puts the class into ``CODES`` under its code."""
        super().__init_subclass__()
        cls.code = code
        cls.is_advice = is_advice
        _register(cls, code)

    def __init__(self, problem: str, *, fix: str) -> None:
        """Composes the message from what was noticed and how to mend it."""
        super().__init__(_compose(self.code, problem, fix))
