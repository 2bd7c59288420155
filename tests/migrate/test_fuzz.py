"""Random changes to real Python files: check ends, and says nothing outside the file."""

import keyword
import random
import re
from pathlib import Path

import pytest

import pmapx
from pmapx.migrate.check import check
from pmapx.migrate.settings import make

ROOT = Path(__file__).parents[2]
FILES = [
    *sorted(Path(pmapx.__file__).parent.glob("*.py")),
    *sorted((ROOT / "tests").glob("test_*.py")),
    *sorted((ROOT / "examples").glob("*.py")),
]
NAMES = ("jax", "pmap", "self", "f", "x", "jax.pmap", "jax.tree.map", "step", "jax.jit", "None")
LINES = (
    "f = jax.pmap(f)", "jax = jax.pmap(jax)", "x = jax.tree.map(jax.tree.map, x)", "del x",
    "self.x = self.x(self)", "for x in x: x = x(x)", "class A(A): x = A", "x = [x] * 3 + [x]",
    "def f(f=f, *a, **k): return f(f, *a, **k)", "x[x] = x", "x, *f = f, x", "yield f", "global x",
    "x = jax.pmap(x, in_axes=-1, donate_argnums=(0, 0))(x)[0]", "from . import *",
    "lambda: (yield)",
    "x = (x := x)[0]", "while x: x = x(x)[x]", "x = {**x, 'x': x}", "import jax as x",
)  # fmt: skip


def changed(text, draw):
    """Renames a few names and adds a few lines, so that most results still parse."""
    for _ in range(draw.randint(1, 5)):
        lines = text.splitlines(keepends=True)
        at = draw.randrange(len(lines))
        words = [
            word
            for word in re.finditer(r"[A-Za-z_][\w.]*", lines[at])
            if not keyword.iskeyword(word[0])
        ]
        if words and draw.random() < 0.6:
            word = draw.choice(words)
            line = lines[at]
            lines[at] = line[: word.start()] + draw.choice(NAMES) + line[word.end() :]
        elif draw.random() < 0.8:
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines.insert(at, f"{indent}{draw.choice(LINES)}\n")
        else:
            del lines[at : at + draw.randint(1, 3)]
        text = "".join(lines) or "x\n"
    return text


@pytest.mark.parametrize("seed", range(8))
def test_changed_files_are_survived(tmp_path, seed):
    draw = random.Random(seed)
    for number in range(10):
        text = changed(draw.choice(FILES).read_text("utf-8"), draw)
        (tmp_path / f"{number}.py").write_text("import jax\n" + text, "utf-8")
    found = check([str(tmp_path)], make({"confidence": "low"})).findings
    for finding in found:
        lines = Path(finding.place.path).read_text("utf-8").count("\n") + 1
        assert 1 <= finding.place.line <= finding.place.end_line <= lines
    # Otherwise the parser is tested and nothing else.
    assert sum(finding.code == "PMX500" for finding in found) < 9


def test_hostile_flow_ends(tmp_path):
    (tmp_path / "a.py").write_text(
        "import jax\nf = jax.pmap\nwhile f:\n    f = f(f)\n    f = [f] * 3 + [f]\n"
        "    g = {'x': f}\n    f = (f, g, f)\n    g[f] = g\n    f, *g = f, g\n"
        "def h(*a, **k):\n    return h(h, *a, a=a, **k)\nh(h, f)[0](h)[0]\n"
    )
    found = check([str(tmp_path)]).findings
    assert {finding.code for finding in found} == {"PMX501", "PMX505"}
