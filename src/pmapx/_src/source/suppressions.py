"""``# noqa`` comments."""

import functools
import io
import re
import tokenize

from pmapx._src.source.files import Source
from pmapx._src.source.location import Place

_NOQA = re.compile(r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Z][A-Z0-9]+(?:[,\s]+[A-Z][A-Z0-9]+)*))?",
                   re.IGNORECASE)  # fmt: skip


def suppressed(text: str) -> dict[int, frozenset[str]]:
    """Returns the codes that comments suppress, by line; the empty set means all of them.

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


def is_suppressed(code: str, place: Place, source: Source) -> bool:
    """Returns whether a comment on the first or the last line of a place suppresses a finding."""
    lines = {place.line, place.end_line}
    # Comments are looked for only where one may be: finding them all takes long.
    if not any("noqa" in source.line(line).lower() for line in lines):
        return False
    comments = _comments(source)
    return any(not comments[line] or code in comments[line] for line in lines & comments.keys())


@functools.lru_cache(maxsize=4)
def _comments(source: Source) -> dict[int, frozenset[str]]:
    return suppressed(source.text)
