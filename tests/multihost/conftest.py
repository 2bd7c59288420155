"""Real processes on loopback, each with virtual devices of its own.

A launch costs seconds, so the cases of a file run in one: `outcomes` starts the processes once,
each runs the file's cases in order, and a test looks at the outcome of its own case.
"""

import fcntl
import json
import os

import pytest
from started import run_cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """The outcome of a case: fails the test if any process failed or never came to it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    known = {}

    def check(name, case, **launch):
        key = "-".join([name, *(f"{k}={v}" for k, v in sorted(launch.items()))])
        if key not in known:
            result = shared / f"{key}.json"
            with open(shared / f"{key}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # One launch for all workers of xdist.
                if not result.exists():
                    result.write_text(json.dumps(run_cases(name, shared / key, **launch)))
            known[key] = json.loads(result.read_text())
        found = known[key]
        of_case = found["cases"].get(case, {})
        for index in range(launch.get("processes", 2)):
            error = of_case.get(str(index), "it never came to an end")
            assert error is None, (
                f"process {index}: {error}\nexit statuses {found['statuses']}\n"
                f"{found['tails'][str(index)]}"
            )

    return check
