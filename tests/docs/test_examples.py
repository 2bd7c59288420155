"""The examples, each run to its end; they check their own results."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
from notebooks import run, stored

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"mnist_flax.py": ("flax", "optax")}
# examples/cluster is started in many processes, by tests/multihost/test_launch.py.
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
SMALL = {"train_classifier.py": ["--steps", "60"], "ensemble.py": ["--steps", "1000"]}
SLOW = ("mnist_flax.py", "train_classifier.py", "transformer.py")


def exit_status(path):
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    return 0


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PROGRAMS],
)
def test_example_runs_to_its_end(name, monkeypatch, capsys):
    for library in NEEDS.get(name, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library}; make test-peers runs it")
    monkeypatch.setattr(sys, "argv", [name, *SMALL.get(name, [])])
    assert exit_status(EXAMPLES / name) == 0
    assert capsys.readouterr().out


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_runs_and_its_outputs_are_what_it_gives(notebook):
    for cell, text in run(notebook):
        assert text == stored(cell)


def test_notebook_is_small():
    assert all(path.stat().st_size < 20_000 for path in EXAMPLES.glob("*.ipynb"))
