"""Random changes to real Python files: the pieces they start from and what is done to them."""

import ast
import functools
import random
import re
import sys
import sysconfig
import warnings
from pathlib import Path

import pmapx

ROOT = Path(__file__).parents[2]
LIBRARY = Path(sysconfig.get_path("stdlib"))
# Old and new syntax, odd layout and long strings, in files of a size that is read fast.
OF_LIBRARY = (
    "abc", "ast", "bisect", "cmd", "codeop", "colorsys", "contextlib", "copy", "dataclasses",
    "dis", "enum", "fnmatch", "functools", "graphlib", "heapq", "hmac", "keyword", "linecache",
    "operator", "pprint", "queue", "reprlib", "sched", "shelve", "stat", "statistics", "string",
    "textwrap", "this", "token", "tokenize", "types", "weakref", "zipapp",
    "test/test_grammar", "test/test_fstring", "test/test_patma", "test/test_named_expressions",
    "test/test_decorators", "test/test_type_params",
)  # fmt: skip
FILES = [
    *sorted(Path(__file__).parent.glob("programs/**/*.py")),
    *sorted(Path(pmapx.__file__).parent.glob("_src/map/*.py")),
    *[path for name in OF_LIBRARY if (path := LIBRARY / f"{name}.py").exists()],
]
NAMES = (
    "jax", "pmap", "self", "f", "x", "jax.pmap", "jax.tree.map", "step", "jax.jit", "None",
    "functools.partial", "map_over_devices", "jax.lax", "\uff4aax", "naïve", "名前",
    "jax.device_put_replicated", "lambda", "*", "**", ":=", "not",
)  # fmt: skip
LINES = (
    "f = jax.pmap(f)", "jax = jax.pmap(jax)", "x = jax.tree.map(jax.tree.map, x)", "del x",
    "self.x = self.x(self)", "for x in x: x = x(x)", "class A(A): x = A", "x = [x] * 3 + [x]",
    "def f(f=f, *a, **k): return f(f, *a, **k)", "x[x] = x", "x, *f = f, x", "yield f", "global x",
    "x = jax.pmap(x, in_axes=-1, donate_argnums=(0, 0))(x)[0]", "from . import *",
    "lambda: (yield)", "x = (x := x)[0]", "while x: x = x(x)[x]", "x = {**x, 'x': x}",
    "import jax as x", "if (n := len(f'{x!r:>{n}}')) > 1: pass", "async def g(): await f",
    "x = f'{jax.pmap(f)(x)[0]:{w}.{p}}' 'and' rf\"{x}\\n\"", "try: f()\nexcept* E as e: pass",
    "match jax.pmap(f)(x):\n  case {'a': [x, *_], **rest} if x: pass\n  case jax.P(): pass",
    "@(lambda g: jax.pmap(g))\ndef h(x, /, y, *, z): return x", "with (a as b, c as d): pass",
    "x = jax.pmap(f)(x); y = jax.pmap(g)(y) ; ", "print(x, end='\\N{BULLET}') # é 名前",
    "nonlocal x", "x: jax.pmap = 1", "assert jax.pmap(f), 'why'", "return jax.pmap(f)(x)",
    "x = jax.pmap(lambda x: (\n  x,  # why\n), 'i')", "del jax.pmap", "from jax import *",
    "import functools as ft, jax", "f = ft.partial(jax.pmap, axis_name='i', **k)",
    "@functools.partial(\n    jax.pmap,\n    axis_name='i',\n)\ndef f(x): return x",
    "@jax.pmap\n# between\n@f\ndef g(x): return x", "f = partial(jax.pmap, axis_name='i')(f)",
    "f = \\\n  jax.\\\n pmap(f, \\\n 'i')", "f = jax . pmap ( f , )", "f = (jax.pmap)(f)",
    "from jax import pmap, device_put_sharded as dps", "x = dps(x, jax.devices())",
    "f = pmap(f, *a, **k)", "f = [jax.pmap(f)(x) for x in x if jax.pmap(g)]", "f = jax.pmap",
    "x = jax.device_put_replicated(x, jax.devices())", "f = jax.pmap if x else jax.vmap",
    "f = jax.pmap(jax.pmap(f, 'i'), 'j')", "f = jax.pmap(f, static_broadcasted_argnums=(0, n))",
)  # fmt: skip
NEW_LINES = (
    "def f[T: int, *Ts, **P](x: T) -> T: return jax.pmap(f)(x)", "type X[T] = list[jax.pmap]",
    "class A[T](B): x = jax.pmap(f)", "x = f'{f'{jax.pmap(f)}'}'", "x = f\"{x[\"a\"]} {\n  x\n}\"",
)  # fmt: skip
if sys.version_info >= (3, 12):
    LINES += NEW_LINES
ODD = ("\f", "\t", "\v", "\\\n", "\ufeff", "\u2028", "\u200b", "\xa0", "\0", "é", "🙂", "'''", "#")
WORD = re.compile(r"[^\W\d][\w.]*|\d[\w.]*|\S")


@functools.cache
def _statements(path):
    """Return the lines of a file, and in which of them its statements begin."""
    text = path.read_text("utf-8")
    starts = [
        min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        for node in ast.parse(text).body
    ]
    return text.splitlines(keepends=True), starts or [1]


def piece(draw):
    """Return some statements of a real file, with an import of JAX before them."""
    lines, starts = _statements(draw.choice(FILES))
    first = draw.choice(starts)
    later = [line for line in starts if first < line <= first + 30] or [len(lines) + 1]
    return "import jax\n" + "".join(lines[first - 1 : draw.choice(later) - 1][:60])


def mutated(text, draw):
    """Change a text in a few places, and then its layout and its encoding now and then; bytes."""
    for _ in range(draw.randint(2, 8)):
        changed = draw.choice(CHANGES)(text, draw) or "x\n"
        # Most cases should get past the parser.
        if draw.random() < 0.2 or _parses(changed):
            text = changed
    if draw.random() < 0.3:
        text = draw.choice(LAYOUTS)(text, draw)
    data = text.encode("utf-8", "surrogatepass")
    return draw.choice(ENCODINGS)(data, text, draw) if draw.random() < 0.1 else data


def _parses(text):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _lines(text):
    return text.splitlines(keepends=True) or ["\n"]


def _indent(line):
    return line[: len(line) - len(line.lstrip(" \t"))]


def add_lines(text, draw):
    lines = _lines(text)
    at = draw.randrange(len(lines) + 1)
    indent = _indent(lines[min(at, len(lines) - 1)])
    added = draw.choice(LINES).replace("\n", f"\n{indent}")
    lines.insert(at, f"{indent}{added}\n")
    return "".join(lines)


def delete_lines(text, draw):
    lines = _lines(text)
    at = draw.randrange(len(lines))
    del lines[at : at + draw.randint(1, 3)]
    return "".join(lines)


def repeat_lines(text, draw):
    lines = _lines(text)
    at = draw.randrange(len(lines))
    lines[at:at] = lines[at : at + draw.randint(1, 8)]
    return "".join(lines)


def swap_lines(text, draw):
    lines = _lines(text)
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines)


def _word(text, draw):
    words = list(WORD.finditer(text))
    return draw.choice(words) if words else re.match("", text)


def rename(text, draw):
    word = _word(text, draw)
    return text[: word.start()] + draw.choice(NAMES) + text[word.end() :]


def delete_word(text, draw):
    word = _word(text, draw)
    return text[: word.start()] + text[word.end() :]


def repeat_word(text, draw):
    word = _word(text, draw)
    return text[: word.end()] + draw.choice(["", " "]) + word[0] + text[word.end() :]


def swap_words(text, draw):
    a, b = sorted((_word(text, draw), _word(text, draw)), key=lambda word: word.start())
    if a.end() > b.start():
        return text
    middle = text[a.end() : b.start()]
    return text[: a.start()] + b[0] + middle + a[0] + text[b.end() :]


def insert_odd(text, draw):
    at = draw.randrange(len(text) + 1)
    if draw.random() < 0.5:
        at = text.rfind("\n", 0, at) + 1
    return text[:at] + draw.choice(ODD) + text[at:]


def continue_line(text, draw):
    at = _word(text, draw).start()
    return text[:at] + "\\\n" + text[at:]


def wrap_in_parentheses(text, draw):
    """Put what follows an equals sign in parentheses over lines, with a comment."""
    found = list(re.finditer(r"(?<= = )([^\n#'\"]+)\n", text))
    if not found:
        return text
    match = draw.choice(found)
    return f"{text[: match.start()]}(  # why\n  {match[1]}\n)\n{text[match.end() :]}"


def truncate(text, draw):
    return text[: draw.randrange(len(text) + 1)]


CHANGES = (
    add_lines, add_lines, add_lines, add_lines, delete_lines, repeat_lines, swap_lines, rename,
    rename, delete_word, repeat_word, swap_words, insert_odd, continue_line, wrap_in_parentheses,
    wrap_in_parentheses, truncate,
)  # fmt: skip


def with_tabs(text, draw):
    return re.sub(r"(?m)^( {4})+", lambda m: "\t" * (len(m[0]) // 4), text)


def with_other_indent(text, draw):
    unit = draw.choice([" ", "  ", "   ", "  \t"])
    return re.sub(r"(?m)^( {4})+", lambda m: unit * (len(m[0]) // 4), text)


def with_crlf(text, draw):
    return text.replace("\n", "\r\n")


def with_cr(text, draw):
    return text.replace("\n", "\r")


def with_mixed_ends(text, draw):
    return re.sub("\n", lambda _: draw.choice(["\n", "\r\n", "\r"]), text)


def with_form_feeds(text, draw):
    return re.sub(r"(?m)^(?=\S)", lambda _: draw.choice(["", "", "\f"]), text)


def without_end(text, draw):
    return text.rstrip("\n") + draw.choice(["", " ", "\\", "  # é", ";", "\t\n\n\n"])


def with_trailing_space(text, draw):
    return re.sub(r"(?m)$", lambda _: draw.choice(["", " ", "\t "]), text)


LAYOUTS = (
    with_tabs, with_other_indent, with_crlf, with_cr, with_mixed_ends, with_form_feeds,
    without_end, with_trailing_space,
)  # fmt: skip


def with_mark(data, text, draw):
    return b"\xef\xbb\xbf" + data


def in_latin(data, text, draw):
    return b"# -*- coding: latin-1 -*-\n" + text.encode("latin-1", "replace")


def in_another_encoding(data, text, draw):
    name = draw.choice(["utf-16", "utf-8-sig", "cp1252", "shift_jis", "rot13", "nonsense", "utf-7"])
    cookie = f"# coding={name}\n"
    try:
        return (cookie + text).encode(name, "replace")
    except LookupError:
        return cookie.encode() + data


def cut_bytes(data, text, draw):
    return data[: draw.randrange(len(data) + 1)]


def with_noise(data, text, draw):
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes(draw.randrange(256) for _ in range(3)) + data[at:]


ENCODINGS = (with_mark, in_latin, in_another_encoding, cut_bytes, with_noise)


def case(seed):
    """Return the bytes of one case, the same whenever asked."""
    draw = random.Random(seed)
    return mutated(piece(draw), draw)
