"""Programs that use pmap, run before and after they are migrated, in processes of their own."""

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from pmapx._src.codemod.migration import migrate
from virtual_devices import UNOPTIMIZED, forced

SRC = Path(__file__).parents[2] / "src"
RUNNER = """
import pathlib, pickle, runpy, sys, warnings
is_before, folder, out = sys.argv[1] == "before", *map(pathlib.Path, sys.argv[2:])
is_small_step = sys.argv[1] == "small step"
import jax, numpy as np
# Of many steps in flight, XLA's CPU backend now and then finishes none.
jax.config.update("jax_cpu_enable_async_dispatch", False)
if jax.__version_info__ < (0, 9):
    # On few cores, nested shard_maps deadlock in the thread pool of MLIR's verifier.
    from jax._src.interpreters import mlir
    mlir.JaxIrContext.set_thread_pool = lambda context, pool: context.enable_multithreading(False)
if is_before:
    import pmapx
    pmapx.install()
else:
    # JAX's own pmap may not be used, and of pmapx nothing can be imported but in the small step.
    if not is_small_step:
        sys.modules["pmapx"] = None
    def forbidden(*args, **kwargs):
        raise AssertionError("jax.pmap is still used")
    jax.pmap = forbidden
warnings.simplefilter("ignore")
results = {}
for path in sorted(folder.glob("*.py")):
    try:
        names = runpy.run_path(str(path))
        results[path.stem + " traces"] = len(names.get("TRACES", ()))
        leaves = jax.tree_util.tree_flatten_with_path(names["RESULT"])[0]
        results[path.stem] = [(jax.tree_util.keystr(k), np.asarray(v)) for k, v in leaves]
    except Exception as error:
        results[path.stem] = f"{type(error).__name__}: {error}"
out.write_bytes(pickle.dumps(results))
"""


def rewritten(folder, text, name="program.py", style="stacked"):
    """Migrate one program; its new text and what became of each site."""
    path = Path(folder) / name
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    files = migrate([str(path)], style=style).files
    if not files:
        return path.read_bytes(), ()
    return files[0].after, files[0].outcomes


def run_all(folder, which):
    """Run every program of a folder on 8 virtual devices; its results by name."""
    runner, out = folder.parent / "runner.py", folder.parent / f"{which}.pickle"
    runner.write_text(RUNNER)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "XLA_FLAGS": f"{forced(8)} {UNOPTIMIZED}",
        "JAX_PLATFORMS": "cpu",
    }
    if which in ("before", "small step"):
        environment["PYTHONPATH"] = str(SRC)
    command = [sys.executable, str(runner), which, str(folder), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return pickle.loads(out.read_bytes())


def assert_same(before, after):
    """Compare two results to the bit."""
    assert not isinstance(before, str), before
    assert not isinstance(after, str), after
    assert [path for path, _ in before] == [path for path, _ in after]
    for (path, old), (_, new) in zip(before, after, strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape), path
        assert old.tobytes() == new.tobytes(), (path, np.max(np.abs(old - new)))
