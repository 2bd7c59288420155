"""Checking small programs that are written to a folder."""

import textwrap

from pmapx._src.analysis.project import Project
from pmapx._src.lint.check import check
from pmapx._src.lint.fixing import fix_file
from pmapx._src.lint.settings import make


def findings(
    tmp_path, program=None, *, files=None, confidence="low", select=(), processes=1, target_jax=None
):
    """Write a program, or several files, and return what is found in them."""
    for name, text in (files or {"program.py": program}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
    settings = make({"confidence": confidence}, select=tuple(select), target_jax=target_jax)
    return check([str(tmp_path)], settings, processes=processes).findings


def codes(tmp_path, text, **options):
    """The codes found in one program, in order of place."""
    return [finding.code for finding in findings(tmp_path, program=text, **options)]


def marked(tmp_path, code, text, **options):
    """The lines with findings of a code, and the lines that say ``# here``."""
    text = textwrap.dedent(text)
    found = findings(tmp_path, program=text, select=(code,), **options)
    expected = [n for n, line in enumerate(text.splitlines(), 1) if "# here" in line]
    return sorted({finding.place.line for finding in found}), expected


def fixed(text, *, unsafe=False, name="program.py"):
    """A program after its fixes, which leave it as it is when applied again."""
    after = fix_file(Project([name]), name, text.encode(), is_unsafe=unsafe).after
    assert fix_file(Project([name]), name, after, is_unsafe=unsafe).after == after
    return after.decode()
