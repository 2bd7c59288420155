"""Runs programs of `programs/` one after the other and writes down what their `main` gave.

Started as a script with a list of jobs on its input: a process that must not know pmapx does not.
"""

import contextlib
import importlib.util
import io
import json
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import jax
import numpy as np

# Of many steps in flight, XLA's CPU backend now and then finishes none.
jax.config.update("jax_cpu_enable_async_dispatch", False)
if jax.__version_info__ < (0, 9):
    # On few cores, nested shard_maps deadlock in the thread pool of MLIR's verifier.
    from jax._src.interpreters import mlir

    mlir.JaxIrContext.set_thread_pool = lambda context, pool: context.enable_multithreading(False)


def results_of(path):
    """Run one program in a module of its own; its results by their path in the tree."""
    known = set(sys.modules)
    sys.path.insert(0, str(Path(path).parent))
    try:
        spec = importlib.util.spec_from_file_location("program", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["program"] = module
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
            found = module.main()
        leaves = jax.tree_util.tree_flatten_with_path(found)[0]
        return [(jax.tree_util.keystr(key), np.asarray(leaf)) for key, leaf in leaves]
    except Exception:
        return traceback.format_exc()
    finally:
        sys.path.remove(str(Path(path).parent))
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            # Another program may have modules of the same names.
            if name == "program" or (file and Path(path).parent in Path(file).parents):
                del sys.modules[name]


@contextlib.contextmanager
def without_pmap(folder, *, is_pmapx_known):
    """A program may not use JAX's own pmap, nor import pmapx unless it is known."""

    def refused(*args, **kwargs):
        # Libraries may: Equinox does when it is imported.
        if Path(sys._getframe(1).f_code.co_filename).is_relative_to(folder):
            raise AssertionError("jax.pmap is still used")
        return kept(*args, **kwargs)

    kept, jax.pmap = jax.pmap, refused
    if not is_pmapx_known:
        assert "pmapx" not in sys.modules
        sys.modules["pmapx"] = None
    try:
        yield
    finally:
        jax.pmap = kept
        if not is_pmapx_known:
            del sys.modules["pmapx"]


def installed(folder):
    import pmapx

    return pmapx.install()


MODES = {
    "plain": lambda folder: without_pmap(folder, is_pmapx_known=False),
    "pmapx": lambda folder: without_pmap(folder, is_pmapx_known=True),
    "installed": installed,
}


def main():
    warnings.simplefilter("ignore")
    results = {}
    jobs = json.load(sys.stdin)
    # What must not know pmapx goes first.
    for mode, runs_in in MODES.items():
        for job in jobs:
            if job["mode"] == mode:
                with runs_in(Path(job["path"]).parent):
                    results[job["name"]] = results_of(job["path"])
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
