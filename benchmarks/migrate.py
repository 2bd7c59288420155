"""What ``pmapx migrate`` costs: one file of 60,000 lines with 30 pmaps, and trees of yours.

Each is migrated by a command of its own, start included, and nothing is written. Seconds are
processor time, which other programs on the machine disturb least, of the best turn; the peak of
memory is that of the process.

    python benchmarks/migrate.py [TREE...] [--lines 60000] [--pmaps 30] [--turns 1]
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from reading import OTHER, USE


def large_file(lines: int, pmaps: int) -> str:
    """A program with training loops, evenly spread over code that does not use JAX."""
    head, _, body = USE.partition("\n\n\n")
    text, count, others = [head], head.count("\n"), 0
    for number in range(pmaps):
        own = re.sub(r"\b(loss_fn|train_step|train)\b", rf"\1_{number}", body)
        text.append(f"\n\n\n{own}")
        count += text[-1].count("\n")
        while count < (number + 1) * lines // pmaps:
            text.append("\n" + OTHER.format(n=others))
            count += text[-1].count("\n")
            others += 1
    return "".join(text)


def cost(path: str, environment: dict[str, str]) -> tuple[float, float]:
    """The processor time of a command and the most memory that it held, in MB."""
    command = [sys.executable, "-m", "pmapx", "migrate", "--no-color", path]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=null, stderr=null, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 1:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return used.ru_utime + used.ru_stime, used.ru_maxrss / scale


def row(name: str, path: str, turns: int, environment: dict[str, str]) -> None:
    files = sorted(Path(path).rglob("*.py")) if os.path.isdir(path) else [Path(path)]
    lines = sum(file.read_bytes().count(b"\n") for file in files)
    costs = [cost(path, environment) for _ in range(turns)]
    seconds, peak = min(each[0] for each in costs), max(each[1] for each in costs)
    print(f"| {name} | {len(files):,} | {lines:,} | {seconds:.1f} s | {peak:,.0f} MB |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", help="folders of yours, or files")
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--pmaps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=1)
    given = parser.parse_args()
    print("| program | files | lines | processor time | peak memory |")
    print("|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        # pmapx has its bytecode, as pip leaves it.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        large = Path(folder, "large.py")
        large.write_text(large_file(2_000, 1))
        cost(str(large), environment)
        large.write_text(large_file(given.lines, given.pmaps))
        row(f"one file with {given.pmaps} pmaps", str(large), given.turns, environment)
        for tree in given.trees:
            row(os.path.basename(os.path.normpath(tree)), tree, given.turns, environment)


if __name__ == "__main__":
    main()
