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
_TIMEOUTS = ("DEADLINE_EXCEEDED", "timed out")


class UnreachableError(RuntimeError):
    """The coordination service does not answer: process 0 is suspended, lost or has ended."""


def is_available() -> bool:
    """Whether the processes are connected and JAX exposes the store."""
    return fastpath.coordination_client() is not None


def put(key: str, text: str, *, overwrite: bool = False) -> bool:
    """Sets a key; returns False if it exists and ``overwrite`` is False."""
    ask = lambda client: client.key_value_set(key, text, allow_overwrite=overwrite) is None
    return bool(_answer(ask, "ALREADY_EXISTS"))


def get(key: str) -> str | None:
    """Returns the value of a key, or None if it is not set."""
    return _answer(lambda client: client.key_value_try_get(key), "NOT_FOUND")


def wait_for(key: str, timeout: float) -> str | None:
    """Returns the value of a key as soon as it is set, or None on timeout."""
    milliseconds = int(timeout * 1000)
    return _answer(lambda client: client.blocking_key_value_get(key, milliseconds), *_TIMEOUTS)


def entries(folder: str) -> dict[str, str]:
    """Returns the keys directly below ``folder``, without its name, and their values."""
    prefix = f"{folder}/"
    found = _answer(lambda client: client.key_value_dir_get(prefix))
    return {key.removeprefix(prefix): text for key, text in found}


def wait_at_barrier(name: str, timeout: float) -> bool:
    """Waits for all processes at a barrier with a new name; returns False on timeout."""
    try:
        _client().wait_at_barrier(name, int(timeout * 1000))
    except Exception as error:
        if not any(words in str(error) for words in _TIMEOUTS):
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


def _answer(ask: Callable[[Any], Any], *refusals: str) -> Any:
    """Returns what the service answers; None if its error has one of these words."""
    try:
        return ask(_client())
    except Exception as error:
        if any(words in str(error) for words in refusals):
            return None
        raise UnreachableError(str(error)) from error


def _client() -> Any:
    client = fastpath.coordination_client()
    if client is None:
        raise UnreachableError("the processes are not connected")
    return client
