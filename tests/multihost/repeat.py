"""Runs the tests that start several processes or send signals, again and again beside a load.

One busy process a core stands for a machine that others use too. A round that takes too long is
ended and counts as failed. `make test-repeated ROUNDS=20` runs this.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/multihost",
    "tests/cli/test_run.py",
    "tests/audit/test_running_programs.py",
    "tests/source/test_parallel.py",
    "tests/verify/test_over_processes.py",
    "tests/verify/test_runs.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a round")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="busy processes")
    parser.add_argument("rest", nargs="*", help="for pytest; tests given here replace the list")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # By way of finally.
    tests = [] if any(word.startswith("tests/") for word in options.rest) else TESTS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)
    ]
    failed = []
    try:
        for number in range(1, options.rounds + 1):
            begun = time.monotonic()
            status = run([*command, *options.rest], options.timeout)
            if status != 0:
                failed.append(number)
            print(f"round {number}: {status}, {time.monotonic() - begun:.0f} s", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{options.rounds} rounds, failed: {failed or 'none'}")
    return bool(failed)


def run(command: list[str], timeout: float) -> int | str:
    """Runs a round; returns its exit status, or says that it hung."""
    running = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return running.wait(timeout)
    except subprocess.TimeoutExpired:
        return "hung"
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


if __name__ == "__main__":
    sys.exit(main())
