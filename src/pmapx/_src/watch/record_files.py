"""What each process of a watched program found: one JSON file per process, replaced as it grows."""

import json
import os
from pathlib import Path
from typing import Any


def write(records: Path, tool: str, content: dict[str, Any]) -> None:
    """Writes what this process found, completely or not at all."""
    path = records / f"{tool}-{os.getpid()}.json"
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content), encoding="utf-8")
    os.replace(beside, path)


def read(records: str | os.PathLike[str], tool: str) -> list[dict[str, Any]]:
    """Returns what every process found.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder), "audit", {"functions": []})
    ...     read(folder, "audit")
    [{'functions': []}]
    """
    paths = sorted(Path(records).glob(f"{tool}-*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
