"""State that is equal on all devices becomes replicated, and nothing else does."""

import os
import pickle
import subprocess
import sys

import pytest

pytest.importorskip("libcst", reason="needs pmapx[tools]")

from state_programs import HEAD, REPLICATED, STACKED

from pmapx.migrate.migration import migrate
from pmapx.migrate.replicated.proving import prove

RUNNER = """
import pathlib, pickle, runpy, sys
import jax, numpy as np
# Of many steps in flight, XLA's CPU backend now and then finishes none.
jax.config.update("jax_cpu_enable_async_dispatch", False)
folder, out = map(pathlib.Path, sys.argv[1:])
results = {}
for path in sorted(folder.glob("*.py")):
    names = runpy.run_path(str(path))
    result = [(jax.tree_util.keystr(k), np.asarray(v))
              for k, v in jax.tree_util.tree_flatten_with_path(names["RESULT"])[0]]
    state = [(leaf.shape, len(leaf.sharding.device_set), leaf.sharding.is_fully_replicated)
             for leaf in jax.tree.leaves(names["STATE"])]
    results[path.stem] = result, state
out.write_bytes(pickle.dumps(results))
"""


class Runs:
    """Every program before and after, and what became of it."""

    def __init__(self, folder):
        self.old, self.new = folder / "old", folder / "new"
        for each in (self.old, self.new):
            each.mkdir()
        texts = {**REPLICATED, **{name: text for name, (text, _) in STACKED.items()}}
        for name, text in texts.items():
            (self.old / f"{name}.py").write_text(HEAD + text)
        runner = folder / "runner.py"
        runner.write_text(RUNNER)
        command = [sys.executable, str(runner), str(self.old), str(folder / "before")]
        evidence = prove(command, devices=8, timeout=300)
        self.done = {}
        for name in texts:
            done = migrate([str(self.old / f"{name}.py")], style="replicated", evidence=evidence)
            self.done[name] = done
            (self.new / f"{name}.py").write_bytes(done.files[0].after)
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, str(runner), str(self.new), str(folder / "after")]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr[-3000:]
        self.before = pickle.loads((folder / "before").read_bytes())
        self.after = pickle.loads((folder / "after").read_bytes())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("replicated"))


@pytest.mark.parametrize("name", [*REPLICATED, *STACKED])
def test_a_program_gives_the_same_to_the_bit(runs, name):
    (before, _), (after, _) = runs.before[name], runs.after[name]
    assert [path for path, _ in before] == [path for path, _ in after]
    for (path, old), (_, new) in zip(before, after, strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape), path
        assert old.tobytes() == new.tobytes(), path


@pytest.mark.parametrize("name", REPLICATED)
def test_state_lies_whole_on_every_device(runs, name):
    (_, before), (_, after) = runs.before[name], runs.after[name]
    assert [shape[0] for shape, _, _ in before] == [8] * len(before)
    assert after == [(shape[1:], 8, True) for shape, _, _ in before]
    assert runs.done[name].stays == ()


@pytest.mark.parametrize("name", REPLICATED)
def test_what_stood_around_the_state_is_gone(runs, name):
    after = (runs.new / f"{name}.py").read_text()
    assert "check_vma=False" in after
    _, after = after.split("def first(tree):\n")
    _, after = after.split("\n", maxsplit=1)
    assert "device_put_replicated(" not in after
    assert "stack([x]" not in after
    assert "lambda x: x[0], " not in after
    assert "jax.pmap(" not in after


@pytest.mark.parametrize("name", STACKED)
def test_what_has_no_proof_stays_stacked_with_its_reason(runs, name):
    (_, before), (_, after) = runs.before[name], runs.after[name]
    assert [shape for shape, _, _ in before] == [shape for shape, _, _ in after]
    reasons = [stay.reason for stay in runs.done[name].stays]
    assert not STACKED[name][1] or any(STACKED[name][1] in reason for reason in reasons), reasons


def test_a_second_run_changes_nothing(runs):
    for name in REPLICATED:
        assert not migrate([str(runs.new / f"{name}.py")], style="replicated").changed


def test_sites_are_reported_where_they_stood(runs):
    for name in REPLICATED:
        lines = (runs.old / f"{name}.py").read_text().splitlines()
        for outcome in runs.done[name].files[0].outcomes:
            place = outcome.place
            assert lines[place.line - 1][place.column : place.end_column] == "jax.pmap"


def test_a_tree_that_differs_in_part_stays_whole(runs):
    done = runs.done["partly_varying_and_never_fed_back"]
    assert [gain.what for gain in done.gains] == ["step: state, return[0]"]
