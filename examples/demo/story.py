"""One legacy program: it fails today, runs with pmapx, is checked, migrated, verified and audited.

`make demo` runs it. Everything it prints was measured or printed by a command in this run; all its
files are in `build/demo` of the checkout.
"""

import dataclasses
import json
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

from stage import WIDTH, Ended, Stage, bold, quote, say

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
FOLDER = CHECKOUT / "build" / "demo"
PYTHON = sys.executable
PMAPX = (PYTHON, "-m", "pmapx")
DEVICES = 8
STEPS = ("--steps", "150", "--checkpoint", "checkpoint.pkl")
# Several seconds, so that noise does not decide; --quick is for tests, whose figures no one reads.
IS_QUICK = "--quick" in sys.argv[1:]
TIMED_STEPS = "150" if IS_QUICK else "1500"
TIMED = ("--steps", TIMED_STEPS, "--log_every", "10", "--checkpoint", "checkpoint.pkl")
ROUNDS = 1 if IS_QUICK else 3  # of timed runs, in turns; the best of each counts
# Forms that people choose, with the options of migrate that write them.
FORMS = {"stacked": ("--style", "stacked"), "global": (), "jit": ("--to", "jit")}


@dataclasses.dataclass
class Row:
    """A line of the table at the end."""

    name: str
    works: str
    speed: str = "-"
    slowest: str = "-"
    compiles: str = "-"
    gathers: str = "-"
    sent: str = "-"


def main() -> int:
    stage = prepared()
    program = "original/train.py"
    say(f"A training program written for the original pmap, on {DEVICES} virtual CPU devices:")
    say(f"{HERE.relative_to(CHECKOUT) / 'train.py'}, copied to {stage.folder}.")

    stage.chapter("On today's JAX")
    as_it_is = stage.run("python train.py", PYTHON, program, *STEPS)
    quote(textwrap.fill(as_it_is.last_line, WIDTH - 4))

    stage.chapter("With pmapx, unchanged")
    unchanged = stage.run("pmapx run train.py", *PMAPX, "run", program, *STEPS)
    quote("\n".join(unchanged.out.splitlines()[-2:]) if unchanged.status == 0 else unchanged.err)

    stage.chapter("What has to change")
    checked = stage.run("pmapx check train.py", *PMAPX, "check", program)
    quote(
        "\n".join(line for line in checked.out.splitlines() if re.match(r"\S+: PMX|\d+ find", line))
    )

    stage.chapter("Migrated to plain JAX")
    migrated = {form: migrate(stage, form) for form in FORMS}

    stage.chapter("Verified: every call of every pmapped function, before and after")
    verified = {form: migrated[form] and verify(stage, form) for form in FORMS}

    stage.chapter(f"Audited for {DEVICES} devices, and timed")
    audits = {name: audit(stage, name) for name in ("original", *FORMS)}
    ways = [
        ("jax.pmap, function restored", "stand-in", "original"),
        ("pmapx run", "pmapx", "original"),
        *((f"migrated, {form}", "plain", form) for form in FORMS),
    ]
    turns = [[timed(stage, *way, audits) for way in ways] for _ in range(ROUNDS)]
    rows = [Row("jax.pmap", works(as_it_is)), *map(best, zip(*turns, strict=True))]

    stage.chapter("The same program, side by side")
    table(rows)
    say(f"\n  steps/s: the best and the slowest of {ROUNDS} runs of {TIMED_STEPS} steps, in turns;")
    say("  the loss is read every 10 steps. compiles: in one run. gathers: reads of x[0] of an")
    say("  array that is sharded over all devices, which today's JAX does with a collective;")
    say("  pmapx reads one shard, and so does a program with replicated state.")
    say("\n  Pages to open:")
    for page in sorted(stage.folder.glob("*.html")):
        say(f"    {page}")
    shutil.rmtree(stage.folder / "tmp", ignore_errors=True)
    fine = unchanged.status == 0 and all(verified.values())
    fine = fine and all(row.works == "yes" for row in rows[1:])
    if not fine:
        say(bold("\nA step above failed: see its output."))
    else:
        say("\n  Next: try your own program: pmapx run train.py, then pmapx check and migrate.")
    return 0 if fine else 1


def prepared() -> Stage:
    """An empty folder in the checkout with a copy of the program for each version."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("original", *FORMS):
        (FOLDER / name).mkdir(parents=True)
        shutil.copy(HERE / "train.py", FOLDER / name)
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
    return Stage(FOLDER, steps=7)


def migrate(stage: Stage, form: str) -> bool:
    """Rewrites a copy; a run of the old code shows what is equal on all devices."""
    options = FORMS[form]
    watched = () if form == "stacked" else ("--", PYTHON, "train.py", "--steps", "8")
    shown = " ".join(("pmapx migrate .", *options, f"--write --report ../{form}.html"))
    ended = stage.run(
        shown + (" -- python train.py --steps 8" if watched else ""),
        *(*PMAPX, "migrate", ".", *options, "--write", "--no-diff"),
        *("--report", f"../{form}.html", *watched),
        cwd=form,
    )
    quote(ended.out + ended.err)
    return ended.status == 0


def verify(stage: Stage, form: str) -> bool:
    shown = f"pmapx verify --before original --after {form} -- python train.py --steps 8"
    command = (*PMAPX, "verify", "--before", "original", "--after", form)
    devices = ("--devices", str(DEVICES))
    ended = stage.run(shown, *command, *devices, "--", PYTHON, "train.py", "--steps", "8")
    quote("\n".join(line for line in (ended.out + ended.err).splitlines() if " note: " not in line))
    return ended.status == 0


def audit(stage: Stage, name: str) -> dict:
    """What the audit of a run found, as data; its page stays in the folder."""
    result = stage.folder / f"audit-{name}.json"
    ended = stage.run(
        f"pmapx audit --html audit-{name}.html -- python {name}/train.py",
        *(*PMAPX, "audit", "--devices", str(DEVICES), "--json", str(result)),
        *("--html", f"audit-{name}.html", "--", PYTHON, f"{name}/train.py", *STEPS),
    )
    found = re.findall(r"^  (PMX\d+ .*)$", ended.err, re.MULTILINE)
    quote("\n".join(found) or ended.last_line, keep=4)
    return json.loads(result.read_text()) if result.exists() else {}


def timed(stage: Stage, name: str, way: str, version: str, audits: dict[str, dict]) -> Row:
    """A separate run, of which only the compiles are counted."""
    result = stage.folder / "counted.json"
    result.unlink(missing_ok=True)
    ended = stage.run(
        f"python {version}/train.py  ({name})",
        *(PYTHON, str(HERE / "counted.py"), str(result), way, f"{version}/train.py", *TIMED),
    )
    quote(ended.last_line)
    if ended.status:
        return Row(name, works(ended))
    speed = re.search(r"([\d.]+) steps/s", ended.out)
    row = Row(name, works(ended), speed[1] if speed else "0")
    row.compiles = str(json.loads(result.read_text())["compiles"])
    report = audits[version]
    if report.get("functions"):
        reads = report["shard_reads"]
        # Installed, pmapx reads one shard; with JAX alone it is a collective.
        is_gathered = way != "pmapx"
        row.gathers = str(sum(read["count"] for read in reads) if is_gathered else 0)
        step = next(f for f in report["functions"] if f["name"] == "train_step")
        bytes_a_step = sum(each["sent"] * each["times"] for each in step["exchanges"])
        bytes_read = sum(read["bytes"] for read in reads) if is_gathered else 0
        row.sent = f"{in_kib(bytes_a_step)} per step, {in_kib(bytes_read)} for x[0]"
    return row


def best(runs: tuple[Row, ...]) -> Row:
    """The fastest of the runs of one way, with the speed of the slowest, or the one that failed."""
    failed = [run for run in runs if run.works != "yes"]
    if failed:
        return failed[0]
    slowest = min(runs, key=lambda run: float(run.speed)).speed
    return dataclasses.replace(max(runs, key=lambda run: float(run.speed)), slowest=slowest)


def works(ended: Ended) -> str:
    if ended.status == 0:
        return "yes"
    return f"no: {ended.last_line.partition(' is ')[0]}"


def in_kib(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count >= 1024 else f"{count} B"


def table(rows: list[Row]) -> None:
    heads = ("", "works", "steps/s", "slowest", "compiles", "gathers", "sent per device")
    cells = [dataclasses.astuple(row) for row in rows]
    # What fails has only its error to show, which may run over the other columns.
    shown = [heads, *(row for row in cells if not row[1].startswith("no"))]
    widths = [max(len(row[k]) for row in shown) for k in range(len(heads))]
    widths[0] = max(len(row[0]) for row in cells)
    for row in (heads, *cells):
        if row[1].startswith("no"):
            line = f"{row[0]:<{widths[0]}}  {row[1]}"
        else:
            line = "  ".join(
                f"{cell:<{width}}" if k in (0, 1, 6) else f"{cell:>{width}}"
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        say("  " + (bold(line) if row is heads else line).rstrip())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        shutil.rmtree(FOLDER, ignore_errors=True)
        print("\nInterrupted; build/demo was removed.", file=sys.stderr)
        sys.exit(130)
