"""Programs that write files, compile ahead of time, or are notebooks."""

import json
import sys

import pytest

from pmapx._src.verify.verify import verify
from pmapx._src.watch import tree_copies

HEAD = """\
import jax, numpy as np
def step(x):
    return x - jax.lax.pmean(x, "i")
x = np.arange(2, dtype=np.float32)
"""
PMAP = 'step = jax.pmap(step, axis_name="i")\n'
SHARD_MAP = """\
mesh = jax.sharding.Mesh(jax.devices(), ("i",))
spec = jax.sharding.PartitionSpec("i")
step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec))
"""


def write(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def verified(tmp_path, tail, *, name="run.py", program=None, **options):
    program = program or (lambda made: HEAD + made + tail)
    write(tmp_path / "before", name, program(PMAP))
    write(tmp_path / "after", name, program(SHARD_MAP))
    folders = tmp_path / "before", tmp_path / "after"
    return verify([sys.executable, name], *folders, devices=2, **options)


def test_calls_of_what_is_compiled_ahead_of_time_are_compared(tmp_path):
    tail = """
lowered = step.lower(x)
compiled = lowered.compile()
for n in range(3):
    compiled(x + n)
step.trace(x).lower().compile()(x * SCALE)
"""
    found = verified(tmp_path, tail.replace("SCALE", "2"))
    assert [(s.state, s.calls, s.agreement) for s in found.sites] == [
        ("verified", 4, "equal to the bit")
    ]
    write(tmp_path / "after", "run.py", HEAD + SHARD_MAP + tail.replace("SCALE", "3"))
    folders = tmp_path / "before", tmp_path / "after"
    found = verify([sys.executable, "run.py"], *folders, devices=2)
    assert [(s.state, s.detail.partition(":")[0]) for s in found.sites] == [("different", "call 3")]


def test_each_run_has_a_fresh_copy_of_the_tree_and_leaves_nothing_in_it(tmp_path):
    tail = """
import os
n = int(open("data/count").read()) if os.path.exists("data/count") else 0
open("data/count", "w").write(str(n + 1))
open("new", "a").write("x")
assert open("../beside").read() == "shared"
step(x + n + len(open("new").read()))
"""
    (tmp_path / "beside").write_text("shared")
    for version in ("before", "after"):
        write(tmp_path / version, "README", "")
        write(tmp_path / version / "data", "count", "5")
    for _ in range(2):
        found = verified(tmp_path, tail)
        assert [(s.state, s.calls) for s in found.sites] == [("verified", 1)]
        assert not found.notes
        for version in ("before", "after"):
            names = sorted(path.name for path in (tmp_path / version).iterdir())
            assert names == ["README", "data", "run.py"]
            assert (tmp_path / version / "data" / "count").read_text() == "5"


def test_a_file_that_is_too_large_to_copy_and_written_to_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_copies, "SMALL", 10)
    for version in ("before", "after"):
        write(tmp_path / version, "large", "0123456789-")
    tail = 'open("large", "a").write("-")\n'
    found = verified(tmp_path, "", program=lambda made: tail)
    large = tmp_path / "before" / "large"
    assert f"The program wrote to {large}, which is too large to copy" in found.notes[0]


def test_errors_name_the_users_files_and_not_their_copies(tmp_path):
    found = verified(tmp_path, "", program=lambda made: "raise ValueError(__file__)")
    assert f"ValueError: {tmp_path / 'before' / 'run.py'}" in found.output


def test_a_notebook_is_a_program(tmp_path):
    def notebook(made):
        sources = [
            ["%matplotlib inline\n", HEAD],
            "!ls\n" + made,
            "for n in range(int(sys.argv[1])):\n    display(step(x + n))",
        ]
        cells = [{"cell_type": "markdown", "source": "# Title"}]
        cells += [{"cell_type": "code", "source": source} for source in ["import sys", *sources]]
        return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})

    write(tmp_path / "before", "train.ipynb", notebook(PMAP))
    write(tmp_path / "after", "train.ipynb", notebook(SHARD_MAP))
    folders = tmp_path / "before", tmp_path / "after"
    for command in ([sys.executable, "-u", "train.ipynb", "3"], ["train.ipynb", "3"]):
        found = verify(command, *folders, devices=2)
        (site,) = found.sites
        assert (site.state, site.calls, found.errors) == ("verified", 3, ())
        assert site.place == "train.ipynb:cell 4:2"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a notebook"),
        ('{"cells": [{"cell_type": "code", "source": "f("}]}', "cell 1: syntax error"),
    ],
)
def test_a_notebook_that_cannot_run_is_an_error_with_its_reason(tmp_path, text, reason):
    found = verified(tmp_path, "", name="a.ipynb", program=lambda made: text)
    assert reason in found.errors[0]
    assert found.exit_code() == 2
