"""A release of JAX that has no ``jax.pmap`` (I10)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx

pytestmark = pytest.mark.behaviour("I10")

# Its sitecustomize takes jax.pmap away.
WITHOUT_PMAP = Path(__file__).parents[1] / "without_jax_pmap"
LIBRARY = """
import functools
from jax import pmap
import jax
def chains(f, mapper=jax.pmap): return mapper(f, axis_name="chain")
batched = functools.partial(pmap, axis_name="batch")
"""
LIBRARY_PROGRAM = """
import jax
import numpy as np
import pmapx
assert not hasattr(jax, "pmap")
n = jax.device_count()
x = np.arange(n, dtype=np.float32)
np.testing.assert_array_equal(pmapx.pmap(lambda a: a + 1)(x), x + 1)
assert not hasattr(jax, "pmap")
installed = pmapx.install()
assert jax.pmap is pmapx.pmap and "jax.pmap" in installed.patched
import library
total = library.chains(lambda a: jax.lax.psum(a, "chain"))(x)
np.testing.assert_array_equal(total, np.full(n, x.sum()))
assert library.batched(lambda a: jax.lax.pmean(a, "batch"))(x)[0] == x.mean()
pmapx.uninstall()
assert not hasattr(jax, "pmap")
with pmapx.install(oversubscribe=True):
    assert jax.pmap(lambda a: a * 2)(np.ones(2 * n)).sum() == 4 * n
assert not hasattr(jax, "pmap")
print("done")
"""
PROGRAM = """
import jax, numpy as np
import library
def step(state, batch):
    return state + jax.lax.psum(batch, "i")
p_step = jax.pmap(step, axis_name="i")
state = jax.device_put_replicated(np.ones(2, np.float32), jax.local_devices())
for _ in range(3):
    state = p_step(state, np.ones((jax.local_device_count(), 2), np.float32))
print(state[0].tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without_pmap")
    for name, text in {"library": LIBRARY, "train": PROGRAM}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def python(folder, *arguments):
    paths = [WITHOUT_PMAP, folder, Path(pmapx.__file__).parents[1]]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_pmapx_installs_works_and_uninstalls_on_a_jax_without_pmap(folder):
    done = python(folder, "-c", LIBRARY_PROGRAM)

    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize(
    "command",
    [["run", "train.py"], ["audit", "--", sys.executable, "train.py"]],
    ids=["run", "audit"],
)
def test_a_program_runs_on_a_jax_without_pmap(folder, command):
    pytest.importorskip("click", reason="needs pmapx[tools]")

    done = python(folder, "-m", "pmapx", command[0], "--devices", "4", *command[1:])

    assert done.returncode == 0, done.stderr
    assert "[13.0, 13.0]" in done.stdout


@pytest.mark.slow
def test_a_program_is_proven_migrated_and_verified_on_a_jax_without_pmap(folder):
    pytest.importorskip("click", reason="needs pmapx[tools]")

    options = ["--style", "replicated", "--verify", "--devices", "4"]
    done = python(
        folder, "-m", "pmapx", "migrate", "train.py", *options, "--", sys.executable, "train.py"
    )

    assert "replicated: step: state" in done.stdout, done.stdout + done.stderr
    assert "verified" in done.stdout
