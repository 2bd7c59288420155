"""Text and data that others wrote, inside HTML: never markup, never a script."""

from __future__ import annotations

import html
import json


def text(raw: str) -> str:
    """Returns text as HTML, also between the quotes of an attribute.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    # A lone surrogate, as in a file name that is no UTF-8, cannot be written.
    return html.escape(raw.encode("utf-8", "replace").decode("utf-8"), quote=True)


def as_json(data: object) -> str:
    r"""Returns JSON that may stand in a script element: plain ASCII, with no ``<``, ``>`` or ``&``.

    >>> as_json(["</script>", "<!--", chr(0x2028)])
    '["\\u003c/script\\u003e","\\u003c!--","\\u2028"]'
    """
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    # These occur in strings only, and there an escape means the same.
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written
