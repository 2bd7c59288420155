"""What ``pmapx migrate`` makes of public codebases: a table of uses, rewritten and left by reason.

Takes a folder with one checkout a codebase. Nothing of them is run or changed. Every rewritten file
is parsed again; with --again it is also migrated again, to see that nothing more changes.
"""

import argparse
import collections
import datetime
import importlib.metadata
import sys
import time
from pathlib import Path

from turns import markdown, parser_of

from pmapx._src.analysis.project import Project
from pmapx._src.codemod.decide.process_model import Surroundings
from pmapx._src.codemod.migration import migrate
from pmapx._src.codemod.write.rewrite import rewrite
from pmapx._src.source import files
from pmapx._src.source.discovery import Unreadable

COLUMNS = ("codebase", ">files", ">uses of pmap", ">rewritten", "left, and why")


def main() -> int:
    options = parse_options()
    rows, reasons, total = [], collections.Counter(), collections.Counter()
    is_sound = True
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
        is_sound = is_sound and not broken
        reasons += left
        total += {"files": done.read, "uses": len(sites), "rewritten": len(sites) - left.total()}
        if sites:
            name = folder.name.rpartition("+")[2]
            why = "; ".join(f"{n}: {short(reason)}" for reason, n in left.most_common())
            found, rewritten = len(sites), len(sites) - left.total()
            rows.append([name, f"{done.read:,}", str(found), str(rewritten), why])
        print(f"{folder.name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        if options.where:
            for file, each in sites:
                if each.reason:
                    print(f"  {file.path}:{each.place.line}: {each.reason}", file=sys.stderr)
    whole = [f"{total[key]:,}" for key in ("files", "uses", "rewritten")]
    rows.append(["all", *whole, str(reasons.total() or "")])
    print(f"{datetime.date.today()}, pmapx {version('pmapx')}\n")
    print("\n".join(markdown(COLUMNS, rows)))
    share = total["rewritten"] / max(total["uses"], 1)
    print(f"\n{share:.1%} of {total['uses']} uses are rewritten.")
    return 0 if is_sound and share >= options.least else 1


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
