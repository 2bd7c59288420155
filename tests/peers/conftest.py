"""Other people's code, run twice: here through `install()`, elsewhere with JAX's own pmap."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import pmapx
from pmapx._src.map.pmap import PmapImpl

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def calls():
    """The functions of pmapx that had a cache miss so far."""
    seen = []
    on_cache_miss = PmapImpl.on_cache_miss

    def run_and_note(self, *args, **kwargs):
        seen.append(self)
        return on_cache_miss(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PmapImpl, "on_cache_miss", run_and_note)
        yield seen


@pytest.fixture
def installed(calls):
    """`install()` is on; the test fails when nothing of its program went through pmapx."""
    before = len(calls)
    with pmapx.install() as handle:
        yield handle
    assert len(calls) > before, "nothing was called through pmapx: the library has another pmap"


@pytest.fixture
def with_jax_pmap(tmp_path):
    """Runs a function of the test's module with JAX's own pmap, in a process of its own."""

    def run(function, *args, timeout=900):
        result = tmp_path / "result.pickle"
        program = [function.__module__, function.__name__, str(result)]
        done = subprocess.run(
            [sys.executable, str(HERE / "todays_jax.py"), *program],
            input=pickle.dumps(args),
            env={**os.environ, "PYTHONPATH": str(HERE)},
            capture_output=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr.decode()[-6000:]
        return pickle.loads(result.read_bytes())

    return run
