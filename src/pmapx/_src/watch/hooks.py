"""Hooks that more than one tool uses."""

from __future__ import annotations

from pathlib import Path

import pmapx


def install(records: Path) -> None:
    """Runs the program in the legacy mode, so that one for the old pmap runs at all."""
    pmapx.install()
