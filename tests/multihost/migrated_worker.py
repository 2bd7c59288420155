"""One of several processes: joins the others, runs a program, and writes what it set RESULTS to."""

import os
import pickle
import runpy
import sys
import warnings

import jax
import numpy as np


def main(which, program, directory):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["PMAPX_TEST_COORDINATOR"],
        int(os.environ["PMAPX_TEST_PROCESSES"]),
        int(os.environ["PMAPX_TEST_PROCESS"]),
    )
    warnings.simplefilter("ignore")
    if which == "before":
        import pmapx

        pmapx.install()
    else:
        sys.modules["pmapx"] = None

        def forbidden(*args, **kwargs):
            raise AssertionError("jax.pmap is still used")

        jax.pmap = forbidden
    results = runpy.run_path(program)["RESULTS"]
    found = jax.tree_util.tree_flatten_with_path(results)[0]
    rows = [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in found]
    with open(os.path.join(directory, f"{which}.{jax.process_index()}"), "wb") as out:
        pickle.dump(rows, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
