"""Escapes untrusted text and data for HTML."""

from __future__ import annotations

import html
import json


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
