"""The part of a file that can matter: functions and classes that lead nowhere are left blank.

Most of what a file costs is its tree. A definition at the top of a module can be left out of it if
it names nothing that leads to JAX and nothing that stays names it.
"""

import dataclasses
import itertools
import keyword
import re
import sys
from collections.abc import Container

# Names from these lead to nothing that is followed.
_PLAIN = sys.stdlib_module_names | {
    "absl", "cv2", "gym", "gymnasium", "matplotlib", "ml_collections", "numpy", "pandas", "PIL",
    "pytest", "requests", "scipy", "seaborn", "sklearn", "tensorflow", "tensorflow_datasets",
    "torch", "torchvision", "tqdm", "typing_extensions", "wandb", "yaml",
}  # fmt: skip

_LINE_AT_THE_MARGIN = re.compile(rb"\n[^\s#]")
_SPACE_FOR_SIGNS = bytes(c if re.match(rb"\w", bytes([c])) else 32 for c in range(256))
_IN_PARENTHESES = rb"\((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+\)"
_HEADER = re.compile(
    rb"(?:@[^\n]*+\n(?:[\s#)\]}][^\n]*+\n|\n)*+)*+"
    rb"(?:(?:async[ \t]+)?def[ \t]+(\w+)[ \t]*" + _IN_PARENTHESES + rb"[ \t]*(?:->[^\n]+?)?"
    rb"|class[ \t]+(\w+)[ \t]*(?:" + _IN_PARENTHESES + rb")?[ \t]*):"
)
_BEGINNINGS = (b"def", b"class", b"@", b"async")
_BRACKETS = ((b"(", b")"), (b"[", b"]"), (b"{", b"}"))
# Python 2: what is left out is not parsed, and a file that is not Python is to be reported.
_ODD = re.compile(rb"^[ \t]*(?:print[ \t]+[\"'\w%]|exec[ \t]+[\"'\w]|except[^:\n(]*,)", re.M)
_ODD_WORDS = (b"print", b"exec", b"except")
_TARGETS = re.compile(rb"(?:[\w.,*\s()\[\]:|'\"]+?=(?!=))+")
_LITERAL = re.compile(rb"\w+\s*(?::[^=\n]*)?=\s*(?:[\"'\d\-]|True\b|False\b|None\b)[^\n]*\s*\Z")
_ASSIGNED = re.compile(rb"\n([^=\n#]*+)=(?!=)")
_ATTRIBUTE = re.compile(rb"\.(\w+)")
_BLOCKS = (b"if ", b"if(", b"try:", b"for ", b"while ", b"with ", b"async ", b"else", b"elif",
           b"except", b"finally", b"match ")  # fmt: skip
_KEYWORDS = frozenset(word.encode() for word in keyword.kwlist)


@dataclasses.dataclass(slots=True, eq=False)
class _Piece:
    """Lines from one at the margin to the next; ``name`` is that of a definition."""

    start: int
    end: int
    text: bytes
    is_whole: bool = True
    name: bytes = b""
    words: frozenset[bytes] = frozenset()


def excerpt(data: bytes, project: Container[str] = ()) -> tuple[bytes, frozenset[str]]:
    """Returns a file with definitions left blank that lead nowhere, and the names of these.

    Every line keeps its number. ``project`` has the names of modules that may be meant by an
    import even if Python's own library has one of that name.

    >>> excerpt(b"import jax\\ndef f(x):\\n  return jax.pmap(x)\\ndef g(x):\\n  return x\\n")
    (b'import jax\\ndef f(x):\\n  return jax.pmap(x)\\n\\n\\n', frozenset({'g'}))
    """
    # Other ends of lines than \n are read by Python and not seen here.
    if b"\x0c" in data or data.count(b"\r") != data.count(b"\r\n") or b"import *" in data:
        return data, frozenset()
    pieces = _pieces(data)
    definitions = [piece for piece in pieces if piece.name]
    left_out = _leading_nowhere([p for p in pieces if not p.name], definitions, project)
    if not left_out or not _is_sound(b"".join(piece.text for piece in left_out)):
        return data, frozenset()
    kept, done = [], 0
    for piece in left_out:
        kept += [data[done : piece.start], b"\n" * piece.text.count(b"\n")]
        done = piece.end
    kept.append(data[done:])
    return b"".join(kept), frozenset(piece.name.decode() for piece in left_out)


def _words(text: bytes) -> list[bytes]:
    """Returns names and numbers; twice as fast as a pattern finds them."""
    return text.translate(_SPACE_FOR_SIGNS).split()


def _pieces(data: bytes) -> list[_Piece]:
    starts = [found.end() - 1 for found in _LINE_AT_THE_MARGIN.finditer(data)]
    if data[:1].strip(b"#"):
        starts.insert(0, 0)
    pieces: list[_Piece] = []
    is_open = is_decorator = False
    for start, end in itertools.pairwise([*starts, len(data)]):
        text = data[start:end]
        first = text[:1]
        is_closing = first in b")]}"
        if pieces and (is_open or is_decorator or is_closing):
            last = pieces[-1]
            last.end, last.text = end, data[last.start : end]
            # Text at the margin inside a string: no telling what of it is code.
            last.is_whole &= not is_open
        else:
            pieces.append(_Piece(start, end, text))
        is_decorator = first == b"@" or (is_decorator and is_closing)
        is_open ^= bool((text.count(b'"""') + text.count(b"'''")) % 2)
    for piece in pieces:
        is_definition = piece.is_whole and piece.text.startswith(_BEGINNINGS)
        header = _HEADER.match(piece.text) if is_definition else None
        if header is not None:
            piece.name = header[1] or header[2]
            piece.words = frozenset(_words(piece.text))
    return pieces


def _is_sound(text: bytes) -> bool:
    """Returns whether definitions are surely Python, since what is left out is not parsed."""
    is_balanced = all(text.count(one) == text.count(other) for one, other in _BRACKETS)
    is_odd = any(word in text for word in _ODD_WORDS) and _ODD.search(text) is not None
    return is_balanced and not is_odd


def _leading_nowhere(
    others: list[_Piece], definitions: list[_Piece], project: Container[str]
) -> list[_Piece]:
    """Returns the definitions that name nothing relevant, and that nothing kept names."""
    telling: set[bytes] = {b"jax"}
    for piece in others:
        telling |= _bound(piece.text, project)
    telling -= _KEYWORDS
    # Flags are named in strings and in capitals.
    found = [piece for piece in definitions if b"pmap" in piece.text or b"PMAP" in piece.text]
    left = [piece for piece in definitions if piece not in found]
    is_new = True
    while is_new:
        for piece in found:
            telling.add(piece.name)
            telling |= _attributes_set(piece.text)
        found = [piece for piece in left if not piece.words.isdisjoint(telling)]
        left = [piece for piece in left if piece.words.isdisjoint(telling)]
        is_new = bool(found and left)
    kept = [piece for piece in definitions if piece not in left]
    needed = set[bytes]().union(*(piece.words for piece in kept))
    for piece in others:
        if not piece.text.startswith((b'"', b"'", b"__all__")):
            needed.update(_words(piece.text))
    is_new = True
    while is_new:
        found = [piece for piece in left if piece.name in needed]
        left = [piece for piece in left if piece.name not in needed]
        is_new = bool(found and left)
        for piece in found:
            needed |= piece.words
    return left


def _bound(text: bytes, project: Container[str]) -> set[bytes]:
    """Returns names that a statement may bind to something relevant, rather too many."""
    if text.startswith((b"import ", b"from ")):
        words = _words(text)
        package = words[1].decode() if len(words) > 1 else ""
        is_one = text.startswith(b"from ") or b"," not in text
        if is_one and package in _PLAIN and package not in project and b"from ." not in text:
            return set()
        return set(words)
    if text.startswith(_BLOCKS):
        return set(_words(text))
    targets = _TARGETS.match(text)
    if targets is None or _LITERAL.match(text):
        return set()
    return set(_words(targets[0]))


def _attributes_set(text: bytes) -> set[bytes]:
    assigned = b"\n".join(_ASSIGNED.findall(b"\n" + text))
    return set(_ATTRIBUTE.findall(assigned))
