"""``# noqa`` comments."""

from __future__ import annotations

import io
import re
import tokenize

_NOQA = re.compile(r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z][A-Z0-9]+(?:[,\s]+[A-Z][A-Z0-9]+)*))?",
                   re.IGNORECASE)  # fmt: skip


def suppressed(text: str) -> dict[int, frozenset[str]]:
    """Returns the codes that comments silence by line; the empty set is all of them.

    >>> suppressed("x = 1  # noqa: PMX501, E501")
    {1: frozenset({...})}
    >>> suppressed("x = '# noqa'")
    {}
    """
    if "noqa" not in text.lower():
        return {}
    found: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                match = _NOQA.search(token.string)
                if match is not None:
                    codes = re.findall("[A-Z][A-Z0-9]+", (match["list"] or "").upper())
                    found[token.start[0]] = frozenset(codes)
    except (tokenize.TokenError, SyntaxError):
        # The file parsed, so this is at most an odd end of it.
        pass
    return found


def is_suppressed(code: str, lines: range, comments: dict[int, frozenset[str]]) -> bool:
    """Tells whether a comment on the first or the last line silences a finding."""
    for line in {lines.start, lines.stop - 1}:
        codes = comments.get(line)
        if codes is not None and (not codes or code in codes):
            return True
    return False
