"""Assembles a page: its styles, scripts and data, under a content security policy."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

from pmapx import _version
from pmapx._src.pages import escaping

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="pmapx {version}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>{noscript}</p></noscript>
{blocks}
<script>{script}</script>
</body>
</html>
"""
_NOSCRIPT = "This page needs JavaScript; it loads nothing from elsewhere."
_NAME = re.compile(r"[a-z][a-z0-9-]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The parts of a page: files of this folder, and data blocks that its script reads by name.

    ``data`` may hold anything that JSON can. A block is parsed when the script reads it, so a large
    page starts faster if its data comes in many blocks.
    """

    title: str
    data: Mapping[str, object] = dataclasses.field(default_factory=dict)
    styles: tuple[str, ...] = ("shell.css",)
    scripts: tuple[str, ...] = ("shell.js",)
    noscript: str = _NOSCRIPT


def render(page: Page) -> str:
    """Returns the page as one HTML document.

    >>> "\\\\u003cscript" in render(Page("Names", data={"names": ["<script>"]}))
    True
    """
    style = "\n".join(map(_asset, page.styles))
    # Each file is its own scope, except for one global name that later files may use.
    script = "\n".join(map(_asset, page.scripts))
    return _DOCUMENT.format(
        policy=_policy(style, script),
        version=_version.__version__,
        title=escaping.text(page.title),
        style=style,
        noscript=escaping.text(page.noscript),
        blocks="\n".join(_block(name, content) for name, content in page.data.items()),
        script=script,
    )


def _policy(style: str, script: str) -> str:
    """Allows only the page's own style and script, and no HTML from text."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashed(script)}",
            f"style-src {_hashed(style)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hashed(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _block(name: str, content: object) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"the name of a block must be lowercase letters, digits and -, got {name!r}"
        )
    data = escaping.as_json(content)
    return f'<script type="application/json" id="data-{name}">{data}</script>'


def _asset(name: str) -> str:
    # Browsers normalize line ends before they hash.
    return (
        resources.files("pmapx._src.pages").joinpath(name).read_text("utf-8").replace("\r\n", "\n")
    )
