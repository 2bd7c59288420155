"""What the samples of a place in the source are kept by."""

from __future__ import annotations

import hashlib


def site_name(file: str, line: int, column: int) -> str:
    """Returns a name for a place in a file of the tree.

    >>> site_name("train.py", 12, 4)
    '...'
    """
    return hashlib.blake2b(f"{file}:{line}:{column}".encode(), digest_size=8).hexdigest()
