"""Libraries that take ``jax.pmap`` when they are imported, on a JAX that has none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from results import NOT_HERE

import pmapx

PROGRAM = """
import jax, numpy as np
assert not hasattr(jax, "pmap")
import pmapx
pmapx.install()
import {library}
assert jax.pmap(lambda a: a + 1)(np.zeros(jax.device_count()))[0] == 1
print("done")
"""


@pytest.mark.parametrize("library", ["numpyro.infer", "equinox", "flax.jax_utils", "haiku", "brax"])
def test_a_library_is_imported_on_a_jax_without_pmap(library):
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(NOT_HERE)
    paths = [Path(__file__).parents[1] / "without_jax_pmap", Path(pmapx.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(library=library)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-3000:]
