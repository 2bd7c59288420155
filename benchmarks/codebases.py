"""What ``pmapx migrate`` makes of public codebases, without a run of them: two tables.

The first has the uses of pmap, rewritten and left by reason. The second has what a reviewer sees:
lines added to the files that change, functions added, training maps whose state is replicated, and
ruff's findings of unused imports and long lines before and after. Takes a folder with one checkout
a codebase. Nothing of them is run or changed. Every rewritten file is parsed again; with --again it
is also migrated again, to see that nothing more changes.
"""

import argparse
import ast
import collections
import datetime
import difflib
import importlib.metadata
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import markdown, parser_of

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.migration import migrate
from pmapx._src.codemod.program import Program
from pmapx._src.codemod.write.rewrite import rewrite
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable

REVIEW = (
    "codebase", ">files changed", ">lines before", ">lines added", ">functions added",
    ">training maps", ">with replicated state", ">F401, E501 before", ">after", ">seconds",
)  # fmt: skip
COLUMNS = ("codebase", ">files", ">uses of pmap", ">rewritten", "left, and why")


def main() -> int:
    options = parse_options()
    rows, reasons, total = [], collections.Counter(), collections.Counter()
    importable = collections.Counter()
    is_sound, reviews, added_to_files = True, [], []
    for folder in sorted(Path(options.checkouts).iterdir(), key=lambda path: path.name.lower()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        start = time.monotonic()
        done = migrate([str(folder)])
        sites = [(f, each) for f in done.files for each in f.outcomes if "pmap" in each.what]
        left = collections.Counter(each.reason for _, each in sites if each.reason)
        broken = [file.path for file in done.changed if not is_sound_file(file, options.again)]
        for path in broken:
            print(f"{path}: does not parse, or changes again", file=sys.stderr)
        if done.failure is not None:
            print(f"{folder}: internal error: {done.failure!r}", file=sys.stderr)
        is_sound = is_sound and not broken and done.failure is None
        reasons += left
        total += {"files": done.read, "uses": len(sites), "rewritten": len(sites) - left.total()}
        if sites:
            name = folder.name.rpartition("+")[2]
            why = "; ".join(f"{n}: {short(reason)}" for reason, n in left.most_common())
            found, rewritten = len(sites), len(sites) - left.total()
            rows.append([name, f"{done.read:,}", str(found), str(rewritten), why])
        seconds = time.monotonic() - start
        print(f"{folder.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
        if sites:
            found = review(done, str(folder))
            added_to_files += found.pop("each")
            importable += found.pop("importable")
            reviews.append([name, *found.values(), seconds])
        if options.where:
            for file, each in sites:
                if each.reason:
                    print(f"  {file.path}:{each.place.line}: {each.reason}", file=sys.stderr)
    whole = [f"{total[key]:,}" for key in ("files", "uses", "rewritten")]
    rows.append(["all", *whole, str(reasons.total() or "")])
    print(f"{datetime.date.today()}, pmapx {version('pmapx')}\n")
    print("\n".join(markdown(COLUMNS, rows)))
    print()
    counts = [each[1:] for each in reviews] or [[0] * (len(REVIEW) - 1)]
    sums = [sum(values) for values in zip(*counts, strict=True)]
    written = [[str(each[0]), *map(as_text, each[1:])] for each in (*reviews, ["all", *sums])]
    print("\n".join(markdown(REVIEW, written)))
    print(f"\n{sums[2] / max(sums[1], 1):.1%} of the lines of changed files are added;", end=" ")
    print(f"functions added to a file at the median: {statistics.median(added_to_files or [0])}.")
    share = total["rewritten"] / max(total["uses"], 1)
    of_them = importable["replicated"] / max(importable["training"], 1)
    print(f"Of {importable['training']} training maps that can be imported,", end=" ")
    print(f"{importable['replicated']} have replicated state ({of_them:.1%}).")
    print(f"\n{share:.1%} of {total['uses']} uses are rewritten.")
    return 0 if is_sound and share >= options.least else 1


def review(done, folder):
    """Return what a reviewer of a codebase's change counts."""
    changed = [file for file in done.changed if file.path.endswith(".py")]
    each = [len(functions(file.after) - functions(file.before)) for file in changed]
    training = [
        plan.use
        for plans in Program.read([folder], (), None).plans.values()
        for plan in plans
        if plan.use.function is not None and plan.use.function.takes_gradients
    ]
    # A map of a program that cannot be imported does not train.
    broken = [use for use in training if missing_imports(use.site.name.path, folder)]
    gained = [gain.place for gain in done.gains if has_state(gain.what)]
    replicated = [
        use
        for use in training
        if is_replicated(use) or any(use.site.name.is_inside(place) for place in gained)
    ]
    return {
        "files": len(changed),
        "lines": sum(len(file.before.splitlines()) for file in changed),
        "added": sum(added(file) for file in changed),
        "functions": sum(each),
        "training": len(training),
        "replicated": len(replicated),
        "findings": ruff(changed, "before"),
        "findings after": ruff(changed, "after"),
        "each": each,
        "importable": {
            "training": len(training) - len(broken),
            "replicated": sum(use not in broken for use in replicated),
        },
    }


def missing_imports(path, folder):
    """Return the modules of its own repository that a file imports and that are not there.

    Such a file cannot be imported: its program was broken before anything was migrated.

    >>> folder = tempfile.mkdtemp()
    >>> path = Path(folder, "game", "train.py")
    >>> path.parent.mkdir()
    >>> _ = Path(folder, "game", "__init__.py").write_text("")
    >>> _ = path.write_text("import jax, game.train\\nfrom game.old import model\\n")
    >>> missing_imports(str(path), folder)
    ['game.old']
    """
    if not path.endswith(".py"):
        return []
    names = set()
    for node in ast.parse(Path(path).read_bytes()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return sorted(name for name in names if is_missing(name.split("."), Path(folder)))


def is_missing(parts, folder):
    module = folder.joinpath(*parts)
    # Generated modules are in no checkout.
    is_own = Path(folder, parts[0], "__init__.py").is_file() and not parts[-1].endswith("_pb2")
    return is_own and not module.is_dir() and not module.with_suffix(".py").is_file()


def has_state(what):
    """Tell whether a map takes something replicated, keys of random numbers aside.

    >>> has_state("train_step: state, return[0]"), has_state("train_step: rng, key, return[1]")
    (True, False)
    """
    names = what.partition(": ")[2].split(", ")
    return any(not re.match("return|.*(rng|key)", name) for name in names)


def is_replicated(use):
    """Tell whether a map has replicated state as it is written: in_axes and out_axes with None.

    A static argument is no state.
    """
    if isinstance(use.layout, str):
        return False
    in_axes, out_axes = (
        each if isinstance(each, tuple) else (each,)
        for each in (use.layout.in_axes, use.layout.out_axes)
    )
    named = dict(enumerate(use.names or ()))
    arrays = [i for i in range(len(in_axes)) if i not in use.layout.static]
    taken = [named.get(i, "") for i in arrays if in_axes[i] is None]
    return None in out_axes and any(not re.match(".*(rng|key)", name) for name in taken)


def added(file):
    """Return the lines that a diff adds less those that it removes."""
    before, after = (data.decode("utf-8", "replace") for data in (file.before, file.after))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
    kinds = collections.Counter(line[:1] for line in list(lines)[2:])
    return kinds["+"] - kinds["-"]


def functions(data):
    nodes = ast.walk(ast.parse(data))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def ruff(changed, version):
    """Return how many unused imports and long lines ruff finds."""
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(changed):
            Path(folder, f"file{number}.py").write_bytes(getattr(file, version))
        command = [
            sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F401,E501",
            "--line-length", "100", "--quiet", "--output-format", "concise", folder,
        ]  # fmt: skip
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return len(re.findall(r" (?:F401|E501) ", text))


def as_text(value):
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def is_sound_file(file, again):
    """Tell whether a rewritten file parses, and stays as it is when it is migrated again."""
    parsed = files.parse(file.path, file.after)
    if isinstance(parsed, Unreadable):
        return False
    if not again:
        return True
    project = Project([file.path])
    module = project.module(file.path, data=file.after)
    around = Surroundings.of(file.after)
    return module is not None and not rewrite(module, file.after, around=around).is_changed


def short(reason):
    """Return what stands before the advice."""
    return reason.partition(":")[0].partition(",")[0]


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from a checkout"


def parse_options() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("checkouts", help="a folder with one folder a codebase")
    parser.add_argument("--where", action="store_true", help="name the places that are left")
    parser.add_argument("--again", action="store_true", help="migrate what was rewritten again")
    parser.add_argument("--least", type=float, default=0.85, help="share that is to be rewritten")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
