"""The key-value store of JAX's coordination service, which all processes share.

Process 0 runs the service. If JAX does not expose the client, or the processes are not connected,
``is_available`` is False and nothing else here may be called.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pmapx._src import fastpath

T = TypeVar("T")

# An unreachable service would otherwise block the caller for minutes.
PATIENCE = 5.0


class UnreachableError(RuntimeError):
    """The coordination service does not answer: process 0 is suspended, lost or has ended."""


def is_available() -> bool:
    """Whether the processes are connected and JAX exposes the store."""
    return fastpath.coordination_client() is not None


def put(key: str, text: str, *, overwrite: bool = False) -> bool:
    """Sets a key; returns False if it exists and ``overwrite`` is False."""
    try:
        _client().key_value_set(key, text, allow_overwrite=overwrite)
    except Exception as error:
        if "ALREADY_EXISTS" in str(error):
            return False
        raise UnreachableError(str(error)) from error
    return True


def get(key: str) -> str | None:
    """Returns the value of a key, or None if it is not set."""
    try:
        text: str = _client().key_value_try_get(key)
    except Exception as error:
        if "NOT_FOUND" in str(error):
            return None
        raise UnreachableError(str(error)) from error
    return text


def wait_for(key: str, timeout: float) -> str | None:
    """Returns the value of a key as soon as it is set, or None on timeout."""
    try:
        text: str = _client().blocking_key_value_get(key, int(timeout * 1000))
    except Exception as error:
        if _is_timeout(error):
            return None
        raise UnreachableError(str(error)) from error
    return text


def entries(folder: str) -> dict[str, str]:
    """Returns the keys directly below ``folder``, without its name, and their values."""
    prefix = f"{folder}/"
    try:
        found: list[tuple[str, str]] = _client().key_value_dir_get(prefix)
    except Exception as error:
        raise UnreachableError(str(error)) from error
    return {key.removeprefix(prefix): text for key, text in found}


def wait_at_barrier(name: str, timeout: float) -> bool:
    """Waits for all processes at a barrier with a new name; returns False on timeout."""
    try:
        _client().wait_at_barrier(name, int(timeout * 1000))
    except Exception as error:
        if not _is_timeout(error):
            raise
        return False
    return True


def attempted(action: Callable[[], T], patience: float = PATIENCE) -> T | None:
    """Returns the result of ``action``, or None if it fails or takes longer than ``patience``.

    For a process that is about to end: most calls of the service have no timeout of their own.
    """
    outcome: list[T] = []

    def run() -> None:
        with contextlib.suppress(UnreachableError):
            outcome.append(action())

    running = threading.Thread(target=run, daemon=True)
    running.start()
    running.join(patience)
    return outcome[0] if outcome else None


def _is_timeout(error: Exception) -> bool:
    return "DEADLINE_EXCEEDED" in str(error) or "timed out" in str(error)


def _client() -> Any:
    client = fastpath.coordination_client()
    if client is None:
        raise UnreachableError("the processes are not connected")
    return client
