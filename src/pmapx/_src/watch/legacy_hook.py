"""A hook: the program runs in the legacy mode, as with ``pmapx run``."""

from __future__ import annotations

from pathlib import Path

import pmapx


def install(records: Path) -> None:
    """Patches JAX before the program uses it."""
    pmapx.install()
