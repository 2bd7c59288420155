"""The programs of `programs/`: what each needs, and what is expected of its migration."""

import ast
import dataclasses
import functools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

from virtual_devices import xla_flags

HERE = Path(__file__).parent
FOLDER = HERE / "programs"
SRC = HERE.parents[1] / "src"
EXPECTED = tomllib.loads((FOLDER / "expected.toml").read_text())


@dataclasses.dataclass(frozen=True)
class Program:
    """A file, or a folder with a `main.py`."""

    name: str
    path: Path

    @property
    def files(self):
        return sorted(self.path.rglob("*.py")) if self.path.is_dir() else [self.path]

    @functools.cached_property
    def libraries(self):
        """What it imports besides JAX, NumPy and Python's own."""
        imported = set()
        for file in self.files:
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add(node.module.partition(".")[0])
        own = {file.stem for file in self.files} | {file.parent.name for file in self.files}
        return sorted(imported - own - {"jax", "numpy"} - sys.stdlib_module_names)

    def expected(self, key, style):
        """Return an entry of `expected.toml`, for this style where it says so."""
        found = EXPECTED.get(self.name, {}).get(key)
        return found.get(style) if isinstance(found, dict) else found

    def copied_to(self, folder):
        """Copy it into a folder of its own; the copy."""
        target = Path(folder) / self.name / self.path.name
        if self.path.is_dir():
            shutil.copytree(self.path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True)
            shutil.copyfile(self.path, target)
        return Program(self.name, target)

    @property
    def main(self):
        return self.path / "main.py" if self.path.is_dir() else self.path


PROGRAMS = {
    path.stem: Program(path.stem, path)
    for path in sorted(FOLDER.iterdir())
    if path.suffix == ".py" or (path / "main.py").exists()
}
# After 300 seconds, unless it is told otherwise.
_STUCK_SECONDS = "--xla_cpu_collective_call_terminate_timeout_seconds=90"


def run(jobs, out):
    """Run programs in one process on 8 virtual devices; their results, or what they raised.

    ``jobs`` are names for the results, each with a program and how it is run (see the runner).
    """
    jobs = [
        {"name": name, "path": str(program.main), "mode": mode}
        for name, (program, mode) in jobs.items()
    ]
    return run_jobs(jobs, out, XLA_FLAGS=xla_flags(8), JAX_PLATFORMS="cpu")


def run_jobs(jobs, out, **environment):
    """Run the jobs of program_runner.py in a process; their results by name."""
    given = environment.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    flags = f"{given} {_STUCK_SECONDS}".strip()
    for is_last in (False, False, False, True):
        done = subprocess.run(
            [sys.executable, str(HERE / "program_runner.py"), str(out)],
            input=json.dumps(jobs),
            env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
            | environment
            | {"XLA_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        # Now and then, on a busy machine, XLA's CPU backend starts a collective on all devices but
        # one, and ends the process when nothing comes of it.
        is_stuck = done.returncode == -signal.SIGABRT and "rendezvous" in done.stderr
        if is_last or not is_stuck:
            break
    assert done.returncode == 0, done.stderr[-4000:]
    return pickle.loads(Path(out).read_bytes())
