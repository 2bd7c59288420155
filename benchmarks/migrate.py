"""What ``pmapx check`` costs on a large tree, beside the cost of reading its files.

Makes a tree of 5,000 Python files of which 2 % use pmap, and measures in turns within one run:
reading every file, and checking the tree. Prints the ratio, which is to stay below 3.

    python benchmarks/migrate.py [--files 5000] [--turns 5]
"""

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from pmapx.migrate.check import check

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
    """Writes packages of 50 files each, of about 10 kB as real ones have."""
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


def timed(function, *args):
    start = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), options.files)
        read, checked = [], []
        for _ in range(options.turns):
            seconds, size = timed(read_all, folder)
            read.append(seconds)
            seconds, report = timed(check, [folder])
            checked.append(seconds)
    print(f"{report.files:,} files, {size / 2**20:.0f} MiB, {report.files_with_uses} with uses,")
    print(f"{len(report.findings)} findings; the best of {options.turns} turns:")
    print(f"  reading   {min(read):7.3f} s")
    print(f"  checking  {min(checked):7.3f} s   {min(checked) / min(read):.2f} x reading")


if __name__ == "__main__":
    main()
