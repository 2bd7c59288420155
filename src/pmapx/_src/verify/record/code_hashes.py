"""A hash of a function's code that does not depend on its line numbers."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any


def code_digest(fun: Callable[..., Any]) -> str:
    """Returns a hash of a function's code, empty for a callable without code, such as a class.

    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1) != code_digest(lambda x: -x)
    True
    >>> code_digest(functools.partial(int, base=2))
    ''
    """
    inner: Any = fun
    for _ in range(20):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, types.MethodType):
            inner = inner.__func__
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            break
    code = getattr(inner, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    return hashlib.blake2b(_text(code).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _text(code: types.CodeType) -> str:
    constants = [
        _text(each) if isinstance(each, types.CodeType) else f"{type(each).__name__} {each!r}"
        for each in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return f"{code.co_name} {code.co_code!r} {names} {constants}"
