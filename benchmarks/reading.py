"""What ``pmapx check`` costs on a large tree, beside the cost of reading its files.

Makes a tree of 5,000 Python files of which 2 % use pmap, or takes one of yours, and measures in
turns within one run, with the files in the cache of the system: reading every file (a plain loop
over os.walk and open for bytes, and Path.rglob and read_text for text), and checking the tree, in
one process and in as many as pay. The ratio to reading bytes is to stay below 3.
Starting Python is in none of these; the last two lines are commands of their own, with it in both.
The second column is processor time, of all processes together: on a machine with other things to do
it is the one to compare.

    python benchmarks/reading.py [FOLDER] [--files 5000] [--turns 5]
"""

import argparse
import inspect
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pmapx._src.lint.check import check
from pmapx._src.source import parallel

SHARE_WITH_USES = 0.02

USE = """
import functools
import jax
import jax.numpy as jnp
from flax import jax_utils


def loss_fn(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


@functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0,))
def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state, batch)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {"loss": loss}


def train(state, batches):
    state = jax_utils.replicate(state)
    for step, batch in enumerate(batches):
        state, metrics = train_step(state, batch)
        if step % 100 == 0:
            print(step, metrics["loss"][0])
    return jax_utils.unreplicate(state)
"""

OTHER = '''
class Thing{n}:
    """Holds what number {n} holds."""

    def __init__(self, name, size={n}):
        self.name = name
        self.size = size

    def area(self, scale=1.0):
        total = 0.0
        for index in range(self.size):
            total += index * scale
        return total


def make_{n}(names):
    return [Thing{n}(name) for name in sorted(names) if not name.startswith("_")]
'''


def make_tree(folder: Path, count: int) -> list[str]:
    """Writes packages of 50 files each, of 7 kB on average; in public JAX code it is 8 kB."""
    draw = random.Random(0)
    paths = []
    for number in range(count):
        package = folder / f"package_{number // 50}"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        body = "".join(OTHER.format(n=number * 100 + k) for k in range(draw.randint(5, 30)))
        if draw.random() < SHARE_WITH_USES:
            body = USE + body
        elif draw.random() < 0.5:
            body = "import jax\nimport jax.numpy as jnp\n" + body
        path = package / f"module_{number}.py"
        path.write_text(body)
        paths.append(str(path))
    return paths


def read_all(folder: str) -> int:
    """Reads every Python file below a folder."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(parent, name), "rb") as file:
                    size += len(file.read())
    return size


def read_all_by_pathlib(folder: str) -> int:
    """Reads every Python file below a folder as text, as most programs do."""
    return sum(len(path.read_text(encoding="utf-8", errors="replace"))
               for path in Path(folder).rglob("*.py"))  # fmt: skip


READING = ["-c", f"import os, sys\n{inspect.getsource(read_all)}\nread_all(sys.argv[1])"]
CHECKING = ["-m", "pmapx", "check", "--exit-zero", "--output", os.devnull]


def run(command: list[str], folder: str) -> None:
    """Runs Python as a user does."""
    subprocess.run([sys.executable, *command, folder], check=True, stdout=subprocess.DEVNULL)


def timed(function):
    """Returns seconds on the clock and of processors, and what the function gives."""
    start, before = time.perf_counter(), os.times()
    result = function()
    taken, after = time.perf_counter() - start, os.times()
    # User and system time, of this process and of those that it started and that have ended.
    return taken, sum(after[:4]) - sum(before[:4]), result


def measure(folder: str, turns: int) -> None:
    """Prints what reading and checking a folder cost."""
    contenders = {
        "reading": lambda: read_all(folder),
        "reading text, by pathlib": lambda: read_all_by_pathlib(folder),
        "checking, in one process": lambda: check([folder]),
        "checking": lambda: check([folder], processes=None),
        "reading, as a command": lambda: run(READING, folder),
        "pmapx check, as a command": lambda: run(CHECKING, folder),
    }
    seconds = {name: [] for name in contenders}
    processor = {name: [] for name in contenders}
    results = {}
    for _ in range(turns):
        for name, contender in contenders.items():
            taken, used, results[name] = timed(contender)
            seconds[name].append(taken)
            processor[name].append(used)
    report = results["checking"]
    print(
        f"{report.files:,} files, {results['reading'] / 2**20:.0f} MiB, "
        f"{report.files_with_uses} with uses, {len(report.findings)} findings;"
    )
    print(f"{parallel.processors()} processors; the best of {turns} turns:")
    for name, taken in seconds.items():
        beside = "reading, as a command" if "command" in name else "reading"
        ratio = min(taken) / min(seconds[beside])
        print(
            f"  {name:26} {min(taken):7.3f} s {min(processor[name]):7.2f} s of processors"
            f"   {ratio:5.2f} x {beside}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="A tree of yours instead of one that is made.")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    if options.folder is not None:
        measure(options.folder, options.turns)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), options.files)
        measure(folder, options.turns)


if __name__ == "__main__":
    main()
