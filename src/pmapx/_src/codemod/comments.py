"""Comments beside what was rewritten: they say shard_map for pmap, and others are reported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable
from pmapx._src.source.files import Source
from pmapx._src.source.rewriting import notebook_edits
from pmapx._src.source.rewriting.edits import between

# Longer files are not aligned, which takes too long.
MOST_LINES = 20_000
# Lines above a change that belong to it, if none of them is blank.
MOST_ABOVE = 6
_COMMENT = re.compile(r"\s*#")
_PMAP = re.compile(r"\bpmap\b")
# pmap as a verb or a function, and what was done with it.
_NAMED = re.compile(r"\b(?:(jax\.)?[Pp]maps?|[Pp]map(ped|ping|'d))\b")
# Comments that mention pmap as something else than what the code below does.
_COMPARED = re.compile(
    r"shard_map|\bjit\b(?!-)|pjit|xmap|TODO|FIXME|deprecat|instead|unlike|legacy|avoid|https?:|"
    r"without|axis_name|compil(?!e\))|trac",
    re.IGNORECASE,
)
# What may not hold any more.
_OLD = re.compile(
    r"\bpmap|\b(?:leading|device|leading (?:local )?device) (?:axis|dim)", re.IGNORECASE
)


def with_shard_map(path: str, before: bytes, after: bytes) -> tuple[bytes, list[int]]:
    """Returns a rewritten file whose comments above each shard_map name it, not pmap.

    Comments beside other changes are left; the lines of those that speak of pmap or of a device
    axis are returned too.

    >>> old = b"# pmap over cores.\\nf = jax.pmap(g)\\n"
    >>> new = b"# pmap over cores.\\nf = jax.jit(jax.shard_map(g))\\n"
    >>> with_shard_map("a.py", old, new)
    (b'# shard_map over cores.\\nf = jax.jit(jax.shard_map(g))\\n', [])
    """
    original, source = files.parse(path, before), files.parse(path, after)
    if isinstance(original, Unreadable) or isinstance(source, Unreadable):
        return after, []
    if b"map" not in after or max(len(original.lines), len(source.lines)) > MOST_LINES:
        return after, []
    width = Editor(original).width
    old_lines = {line.strip() for line in original.lines}
    beside: dict[int, str] = {}
    for old, new, numbers in _commented(original, source):
        comment = {number: source.line(number) for number in numbers}
        is_mapped = _PMAP.search(old) and "shard_map" in new and not _PMAP.search(new)
        is_named = is_mapped and not _COMPARED.search("".join(comment.values()))
        for number, line in comment.items():
            renamed = _NAMED.sub(_renamed, line) if is_named else line
            if line.strip() in old_lines and beside.get(number, line) == line:
                beside[number] = renamed if len(renamed) <= width else line
    edits = [
        between((number, 0), (number, len(source.line(number))), line)
        for number, line in beside.items()
        if line != source.line(number)
    ]
    left = sorted(number for number, line in beside.items() if _OLD.search(line))
    return notebook_edits.applied(source, after, edits), left


def _renamed(found: re.Match[str]) -> str:
    """Returns what stands for a word: shard_map, sharded or sharding.

    >>> _NAMED.sub(_renamed, "# Pmap the pmapped step by jax.pmap.")
    '# shard_map the sharded step by jax.shard_map.'
    """
    if found[2] is not None:
        return "sharding" if found[2] == "ping" else "sharded"
    return f"{found[1] or ''}shard_map{'s' * found[0].endswith('s')}"


def _commented(original: Source, source: Source) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Gives what each change was, what it is, and the lines above it up to a blank one."""
    old, new = original.lines, source.lines
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, end, new_first, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        begin = new_first
        while begin > new_first - MOST_ABOVE and begin and new[begin - 1].strip():
            begin -= 1
        code = [
            "\n".join(line for line in lines if not _COMMENT.match(line))
            for lines in (old[first:end], new[new_first:new_end])
        ]
        above = [n for n in range(begin + 1, new_first + 1) if _COMMENT.match(source.line(n))]
        yield code[0], code[1], above
