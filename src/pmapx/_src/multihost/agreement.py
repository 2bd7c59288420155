"""Compares values between all processes, each of which gathers those of the others."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from pmapx._src.trees.checked_leaves import is_key

# How much of a difference is shown.
TEXT_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where processes disagree: the first item that differs, as each of them has it."""

    position: int
    values: dict[int, str | None]  # By process; None where a process has fewer items.

    def groups(self) -> list[tuple[str | None, list[int]]]:
        versions: dict[str | None, list[int]] = {}
        for process, text in sorted(self.values.items()):
            versions.setdefault(text, []).append(process)
        return list(versions.items())

    def __str__(self) -> str:
        return "\n".join(
            f"    process{'es' if len(processes) > 1 else ''} "
            f"{', '.join(map(str, processes))}: {text or 'nothing more'}"
            for text, processes in self.groups()
        )


def first_difference(items: Sequence[str]) -> Difference | None:
    """Returns the first item that is not the same in all processes; all must call it."""
    if jax.process_count() == 1:
        return None
    longest = int(_gathered(np.array(len(items), np.int64)).max())
    if longest == 0:
        return None
    digests = np.zeros((longest, 2), np.int64)
    for index, item in enumerate(items):
        digests[index] = _digest(item)
    gathered = _gathered(digests)
    differing = np.flatnonzero((gathered != gathered[:1]).any(axis=(0, 2)))
    if not len(differing):
        return None
    position = int(differing[0])
    texts = _gathered(_as_bytes(items[position] if position < len(items) else None))
    return Difference(position, {process: _as_text(text) for process, text in enumerate(texts)})


def _gathered(x: np.ndarray) -> np.ndarray:
    """Returns what every process passed, along a new first axis."""
    # 64-bit numbers would lose half of their bits on the way.
    as_bytes = np.frombuffer(x.tobytes(), np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(as_bytes, tiled=False))
    return np.frombuffer(gathered.tobytes(), x.dtype).reshape(jax.process_count(), *x.shape)


def _digest(text: str) -> Any:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.int64)


def _as_bytes(text: str | None) -> np.ndarray:
    encoded = b"" if text is None else b"=" + text.encode()
    padded = encoded[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
    return np.frombuffer(padded, np.uint8)


def _as_text(padded: np.ndarray) -> str | None:
    encoded = padded.tobytes().rstrip(b"\0")
    return encoded[1:].decode(errors="replace") if encoded else None


def digest_of(x: Any) -> str:
    """Returns a short text that differs for arrays that differ in shape, type or any bit."""
    value = np.asarray(jax.random.key_data(x) if is_key(x) else x)
    content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()
    return f"{value.dtype}{list(value.shape)} with contents {content}"
