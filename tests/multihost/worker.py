"""One of several processes: joins the others, then runs the cases of a file in order."""

import importlib
import json
import os
import sys
import traceback
import warnings

import jax
import pytest


def join():
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["PMAPX_TEST_COORDINATOR"],
        int(os.environ["PMAPX_TEST_PROCESSES"]),
        int(os.environ["PMAPX_TEST_PROCESS"]),
    )


def cases_of(module):
    """The functions of a file that are cases, in order."""
    return {name: value for name, value in vars(module).items() if name.startswith("case_")}


def main(name, directory):
    join()
    import pmapx

    warnings.simplefilter("error", pmapx.PmapxWarning)
    module = importlib.import_module(name)
    with open(os.path.join(directory, f"cases.{jax.process_index()}"), "w") as report:
        for case, run in cases_of(module).items():
            try:
                run()
                error = None
            except (Exception, pytest.fail.Exception):
                error = traceback.format_exc()
            report.write(json.dumps([case, error]) + "\n")
            report.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
