"""How findings are printed; each file has a function ``render``."""

import importlib

from pmapx._src.lint.check import Report

FORMATS = ("github", "json", "sarif", "text")


def render(report: Report, layout: str) -> str:
    """Returns the report in one of the formats, of which none other is imported."""
    return importlib.import_module(f"{__name__}.as_{layout}").render(report)
