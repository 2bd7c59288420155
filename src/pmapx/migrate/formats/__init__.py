"""How findings are printed; each file has a function ``render``."""

from __future__ import annotations

from collections.abc import Callable

from pmapx.migrate.check import Report
from pmapx.migrate.formats import as_github, as_json, as_sarif, as_text

FORMATS: dict[str, Callable[[Report], str]] = {
    "text": as_text.render,
    "json": as_json.render,
    "sarif": as_sarif.render,
    "github": as_github.render,
}
