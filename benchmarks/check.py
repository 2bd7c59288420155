"""What ``pmapx check`` costs beside ``ruff check --select F --no-cache``, on trees of many sizes.

Both commands take turns in one run on two processors, start included, with the files in the cache
of the system; the best turn of each counts. Times are processor times of all processes together,
which other programs on the machine disturb least; the last column is the ratio of the times on the
clock. pmapx has its bytecode, as pip leaves it. The trees are made of the packages of this
environment: those that use JAX alone, those that do not, and mixtures of 150 to 5,000 files. Trees
of your own are given as paths, JAX's repository for one. The ratio is to stay below 10.

    python benchmarks/check.py [TREE...] [--turns 5]
"""

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZES = (150, 500, 1500, 5000)
MOST_TIMES = 10


def packages() -> dict[str, list[Path]]:
    """The Python files of each installed package, those that use JAX first."""
    folder = Path(sysconfig.get_path("purelib"))
    found = {
        package.name: sorted(package.rglob("*.py"))
        for package in sorted(folder.iterdir())
        if package.is_dir() and (package / "__init__.py").exists()
    }
    first = [name for name in ("jax", "flax", "optax", "haiku", "equinox") if name in found]
    return {name: found[name] for name in [*first, *(n for n in found if n not in first)]}


@contextlib.contextmanager
def copied(files: list[Path]) -> Iterator[str]:
    """A folder with copies: both commands leave out what is installed."""
    root = Path(sysconfig.get_path("purelib"))
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            to = Path(folder, file.relative_to(root))
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to)
        yield folder


def processor_time() -> float:
    """The processor time of all commands so far; os.times counts in steps of 10 ms."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def times(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """The processor time and the time on the clock of a command."""
    began, before = time.perf_counter(), processor_time()
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    if done.returncode > 1:
        raise SystemExit(done.stderr.decode())
    return processor_time() - before, time.perf_counter() - began


def measured(tree: str, turns: int, bytecode: str) -> list[tuple[float, float]]:
    """The best processor time and the best time on the clock of ruff and of pmapx."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "F", "--no-cache", "-q", tree]
    with contextlib.suppress(ImportError):
        from ruff.__main__ import find_ruff_bin

        ruff[:3] = [str(find_ruff_bin())]
    ours = [sys.executable, "-m", "pmapx", "check", "--exit-zero", tree]
    best = [(float("inf"), float("inf"))] * 2
    times(ours, environment)
    for _ in range(turns):
        now = [times(command, environment) for command in (ruff, ours)]
        best = [(min(a, c), min(b, d)) for (a, b), (c, d) in zip(best, now, strict=True)]
    return best


def row(name: str, tree: str, turns: int, bytecode: str) -> float:
    files = [path for path in Path(tree).rglob("*") if path.suffix in (".py", ".pyi", ".ipynb")]
    with_jax = sum(b"jax" in path.read_bytes() for path in files)
    (ruff, ruff_clock), (ours, our_clock) = measured(tree, turns, bytecode)
    print(
        f"| {name} | {len(files):,} | {with_jax:,} | {ruff * 1e3:,.0f} ms | {ours * 1e3:,.0f} ms "
        f"| {ours / ruff:.1f} | {our_clock / ruff_clock:.1f} |",
        flush=True,
    )
    return ours / ruff


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", help="folders of your own")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    by_package = packages()
    everything = [file for files in by_package.values() for file in files]
    print("| tree | files | with JAX | ruff | pmapx check | ratio | on the clock |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    ratios = []
    trees = {name: by_package[name] for name in ("jax", "flax", "numpy") if name in by_package}
    # Every so-many-th file, so that a mixture has of every package what its size allows.
    for size in SIZES:
        every = max(1, len(everything) // size)
        trees[f"mixture of {size:,}"] = everything[::every][:size]
    with tempfile.TemporaryDirectory() as bytecode:
        for name, files in trees.items():
            with copied(files) as folder:
                ratios.append(row(name, folder, given.turns, bytecode))
        for tree in given.trees:
            ratios.append(row(Path(tree).name, tree, given.turns, bytecode))
    print(f"\nworst ratio {max(ratios):.1f}, to stay below {MOST_TIMES}")
    sys.exit(max(ratios) > MOST_TIMES)


if __name__ == "__main__":
    main()
