"""Statements that values of a program's maps may reach."""

import ast
from pathlib import Path

import pytest

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide.connected_code import ConnectedCode

PROGRAM = """\
import numpy as np
from other import helper as renamed
def mapped(x):
    return jax.pmap(step)(x)
def step(x):
    return np.sin(x)
def caller(x):
    return mapped(x)
def unrelated(x):
    return np.cos(x)
def uses_unrelated(x):
    return unrelated(x)
class Holder:
    def __init__(self):
        self.state = mapped(1)
class Reader:
    def read(self, other):
        return other.state
def by_name(x):
    return getattr(x, "caller")
def with_renamed(x):
    return renamed(caller(x))
LIMIT = 3
def with_limit():
    return LIMIT
"""


@pytest.fixture
def connected(tmp_path):
    """The program's connected statements, and those of another file."""

    def names(*lines, program=PROGRAM):
        texts = {"a.py": program, "other.py": "def helper(x): return x\ndef alone(): pass\n"}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        project = Project([str(tmp_path / name) for name in texts])
        modules = [project.module(path, data=Path(path).read_bytes()) for path in project.paths]
        code = ConnectedCode(modules, [(modules[0], line) for line in lines])
        return {
            getattr(statement, "name", "") or ast.unparse(statement)
            for module in modules
            for statement in code.of(module)
            if not isinstance(statement, (ast.Import, ast.ImportFrom))
        }

    return names


def test_callers_callees_attributes_strings_and_renamed_imports_are_connected(connected):
    assert connected(4) == {
        "mapped", "step", "caller", "Holder", "Reader", "by_name", "with_renamed", "helper",
    }  # fmt: skip


def test_what_shares_a_library_alone_is_not(connected):
    assert connected(10) == {"unrelated", "uses_unrelated"}


def test_a_global_name_connects_what_mentions_it(connected):
    assert connected(23) == {"LIMIT = 3", "with_limit"}
