"""Assembles a page: its styles, scripts and escaped data, under a content security policy."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources

from pmapx import _version

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

_NAME = re.compile(r"[a-z][a-z0-9-]*")


def render(
    title: str,
    data: Mapping[str, object],
    styles: Sequence[str] = ("shell.css",),
    scripts: Sequence[str] = ("shell.js",),
    noscript: str = "This page needs JavaScript; it loads nothing from elsewhere.",
) -> str:
    """Returns a page of files of this folder, and data that its script reads by name, as HTML.

    A block of data is parsed when the script reads it, so a large page starts faster if its data
    comes in many blocks.

    >>> "\\\\u003cscript" in render("Names", {"names": ["<script>"]})
    True
    """
    style = "\n".join(map(_asset, styles))
    # Each file is its own scope, except for one global name that later files may use.
    script = "\n".join(map(_asset, scripts))
    return _DOCUMENT.format(
        policy=_policy(style, script),
        version=_version.__version__,
        title=text(title),
        style=style,
        noscript=text(noscript),
        blocks="\n".join(_block(name, content) for name, content in data.items()),
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
    data = as_json(content)
    return f'<script type="application/json" id="data-{name}">{data}</script>'


def _asset(name: str) -> str:
    # Browsers normalize line ends before they hash.
    return (
        resources.files("pmapx._src.pages").joinpath(name).read_text("utf-8").replace("\r\n", "\n")
    )


def text(raw: str) -> str:
    """Returns text as HTML, also for quoted attributes.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    # A lone surrogate, as in a file name that is not UTF-8, cannot be encoded.
    return html.escape(raw.encode("utf-8", "replace").decode("utf-8"), quote=True)


def as_json(data: object) -> str:
    r"""Returns JSON that is safe in a script element: ASCII without ``<``, ``>`` and ``&``.

    >>> as_json(["</script>", "<!--", chr(0x2028)])
    '["\\u003c/script\\u003e","\\u003c!--","\\u2028"]'
    """
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    # These occur only in strings, where an escape is equivalent.
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written
