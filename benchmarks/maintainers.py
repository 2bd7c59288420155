"""What ``pmapx migrate`` writes beside what maintainers wrote when they left pmap by hand.

For each public migration: the files as they were before the maintainers' commit are migrated
without a run, and lines and functions that each side adds and removes are counted, blank lines and
comments aside. Takes a folder with a clone of each repository, named owner+name. Nothing of them is
run or changed.
"""

import argparse
import ast
import collections
import datetime
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from turns import markdown, parser_of

from pmapx._src.codemod.migration import migrate

# The repository, the commit, its form, and the files that used pmap and were migrated by it.
MIGRATIONS = (
    ("jax-ml/jax", "9d4f4aba28", "jit", ["examples/spmd_mnist_classifier_fromscratch.py"]),
    (
        "blackjax-devs/blackjax",
        "f2015c3a4",
        "shard_map",
        ["docs/examples/howto_sample_multiple_chains.md"],
    ),
    ("google/flax", "558be01e", "jit", ["examples/lm1b/train.py"]),
    (
        "google-research/big_vision",
        "538b8a8",
        "jit",
        ["big_vision/train.py", "big_vision/evaluators/classification.py"],
    ),
)
COLUMNS = (
    "migration", "their form", ">lines", ">they add", ">remove", ">functions",
    ">pmapx adds", ">removes", ">functions",
)  # fmt: skip
# What a cell has above its code, and its magics.
_NOT_CODE = re.compile(r"\A---\n.*?^---\n|\A(?::\w+:.*?\n)+|^%.*?\n", re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"```\{code-cell\}[^\n]*\n(.*?)```", re.DOTALL)


def main() -> int:
    options = parse_options()
    rows = []
    for name, commit, form, paths in MIGRATIONS:
        repository = Path(options.clones, name.replace("/", "+"))
        if not repository.is_dir():
            print(f"{name}: there is no clone at {repository}", file=sys.stderr)
            continue
        before, theirs = (
            {path: shown(repository, at, path) for path in paths} for at in (f"{commit}^", commit)
        )
        ours = migrated(repository, f"{commit}^", before)
        if options.diff:
            for path in paths:
                print(
                    "".join(
                        difflib.unified_diff(
                            before[path].splitlines(True), ours[path].splitlines(True), path, path
                        )
                    )
                )
        counts = [count for after in (theirs, ours) for count in changes(before, after)]
        lines = sum(len(code_lines(text)) for text in before.values())
        rows.append(
            [
                f"{name}, {commit}: {', '.join(Path(p).name for p in paths)}",
                form,
                *map(str, (lines, *counts)),
            ]
        )
    print(f"{datetime.date.today()}\n")
    print("\n".join(markdown(COLUMNS, rows)))
    return 0 if rows else 1


def shown(repository: Path, commit: str, path: str) -> str:
    """Return a file at a commit, the code cells of a Markdown page as one program."""
    git = repository / "repo" if (repository / "repo").is_dir() else repository
    command = ["git", "-C", str(git), "show", f"{commit}:{path}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if not path.endswith(".md"):
        return text
    return "\n".join(_NOT_CODE.sub("", cell) for cell in _CELL.findall(text))


def migrated(repository: Path, commit: str, texts: dict[str, str]) -> dict[str, str]:
    """Return the files after pmapx, migrated with the Python files beside them."""
    git = repository / "repo" if (repository / "repo").is_dir() else repository
    with tempfile.TemporaryDirectory() as folder:
        for top in {path.split("/")[0] for path in texts if not path.endswith(".md")}:
            command = f"git -C {git} archive {commit} {top} | tar x -C {folder}"
            subprocess.run(command, shell=True, check=True)
        written = {path: Path(folder, path).with_suffix(".py") for path in texts}
        for path, to in written.items():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(texts[path])
        done = migrate([str(to.parent) for to in written.values()])
        after = {file.path: file.after.decode() for file in done.files}
        return {path: after.get(str(to), texts[path]) for path, to in written.items()}


def code_lines(text: str) -> list[str]:
    lines = (line.rstrip() for line in text.splitlines())
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def changes(before: dict[str, str], after: dict[str, str]) -> tuple[int, int, int]:
    """Return the lines added and removed, and the functions added."""
    kinds: collections.Counter[str] = collections.Counter()
    functions = 0
    for path, text in before.items():
        found = difflib.unified_diff(code_lines(text), code_lines(after[path]), n=0)
        kinds.update(line[:1] for line in list(found)[2:])
        functions += len(defined(after[path]) - defined(text))
    return kinds["+"], kinds["-"], functions


def defined(text: str) -> set[str]:
    nodes = ast.walk(ast.parse(text))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("clones", help="a folder with a clone of each repository, named owner+name")
    parser.add_argument("--diff", action="store_true", help="show what pmapx writes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
