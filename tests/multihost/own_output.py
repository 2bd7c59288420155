"""Runs a Python file; what it prints goes to a file of its own process, `out.<rank>`.

Lines of several processes on one pipe, or of the collectives' C++ on the same one, interleave.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    with open(f"out.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as sys.stdout:
        runpy.run_path(sys.argv[0], run_name="__main__")
