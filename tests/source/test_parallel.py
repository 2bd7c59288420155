"""Reading in several processes: the same report, whatever fails on the way."""

import os
import subprocess
import sys
import textwrap

import pytest

from pmapx._src.source import parallel, prefilter
from pmapx._src.source.prefilter import Load

USE = """
import jax
from package_{package}.steps import step
first = step(1)[0]
own = jax.pmap(lambda x: x)
print(own(first)[0], {number})
"""
USE_WITHOUT_A_WORD = "from package_{package}.steps import step\nprint(step(1)[0])\n"
WRAPPER = "import jax\nstep = jax.pmap(lambda x: x)\ndef first(x):\n    return x[0]\n"
PROGRAM = """
import json, sys
from pmapx._src.lint import check as checking
from pmapx._src.source import prefilter, parallel
from pmapx._src.lint.check import check
from pmapx._src.lint.settings import make
if __name__ == "__main__":
    prefilter.SHARE, prefilter.MOST_CONNECTED, checking.SMALLEST_PART = 1, 600, 2
    if sys.argv[3] == "spawn":
        parallel.can_fork = lambda: False
    report = check([sys.argv[1]], make({"confidence": "low"}), processes=int(sys.argv[2]))
    print(json.dumps([repr(finding) for finding in report.findings]))
"""


def no_progress(done, total):
    pass


def test_the_report_is_the_same_in_any_number_of_processes(tmp_path):
    for package in range(4):
        folder = tmp_path / "code" / f"package_{package}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "steps.py").write_text(WRAPPER)
        (folder / "other.py").write_text(USE_WITHOUT_A_WORD.format(package=package))
        for number in range(5):
            (folder / f"use_{number}.py").write_text(USE.format(package=package, number=number))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    reports = set()
    for number, (processes, how) in enumerate([(1, "fork"), (3, "fork"), (2, "spawn")]):
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "code"), str(processes), how],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        reports.add(done.stdout)
    assert len(reports) == 1
    assert reports.pop().count("PMX521") == 44


def test_files_that_import_one_another_are_read_together():
    files = {
        "a/one.py": Load(prefilter.SHARE, frozenset({b"two"})),
        "a/two.py": Load(prefilter.SHARE),
        "b/one.py": Load(prefilter.SHARE),
    }
    # ``two`` may be either, and so may ``one``.
    assert prefilter.shares(files) == [["a/one.py", "a/two.py"], ["b/one.py"]]
    assert prefilter.shares({}) == []


def test_many_files_that_import_each_other_are_still_divided_into_batches():
    size = prefilter.MOST_CONNECTED // 10
    files = {f"m{n:02}.py": Load(size, frozenset({b"m00"})) for n in range(40)}
    shares = prefilter.shares(files)
    assert [len(share) for share in shares] == [10, 10, 10, 10]
    assert sorted(path for share in shares for path in share) == sorted(files)


def in_a_process_of_its_own(body):
    """Forking is for processes without threads and without JAX, which pytest's may have."""
    program = "import os, signal, sys\nfrom pmapx._src.source import parallel\n" + textwrap.dedent(
        body
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")


@needs_fork
def test_results_keep_the_order_of_items():
    done = in_a_process_of_its_own(
        """
        import time
        def work(item):
            time.sleep(0.001 * (item % 7))
            return item, os.getpid()
        results = parallel.each(work, range(60), 3, lambda done, total: None)
        print([item for item, _ in results] == list(range(60)), len({pid for _, pid in results}))
        """
    )
    assert done.stdout.split()[0] == "True", done.stderr
    assert int(done.stdout.split()[1]) > 1


@needs_fork
def test_what_a_process_that_was_killed_had_is_done_again():
    done = in_a_process_of_its_own(
        """
        import time
        parent = os.getpid()
        def work(item):
            time.sleep(0.01)
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return item
        print(parallel.each(work, range(8), 3, lambda done, total: None))
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("no child is left")
        """
    )
    assert done.stdout.splitlines() == [str(list(range(8))), "no child is left"], done.stderr


@needs_fork
def test_an_error_is_raised_here_and_no_process_is_left():
    done = in_a_process_of_its_own(
        """
        def work(item):
            raise ValueError(f"item {item}")
        try:
            parallel.each(work, range(8), 3, lambda done, total: None)
        except ValueError as error:
            print(error)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("no child is left")
        """
    )
    assert done.stdout.splitlines()[1:] == ["no child is left"], done.stderr


def test_a_process_with_jax_is_not_copied(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", sys)
    assert not parallel.can_fork()
