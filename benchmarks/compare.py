"""The README's table: today's jax.pmap, pmapx and the hand migration, from the measured figures.

Reads docs/assets/*.json, which `make bench-docs` renews, and writes the table between its markers
in README.md and docs/index.md. With `--check` it only says whether the table is as it should be.
"""

import json
import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [CHECKOUT / "README.md", CHECKOUT / "docs" / "index.md"]
BETWEEN = re.compile(r"(<!-- measured: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    stale = []
    for page in PAGES:
        text = page.read_text("utf-8")
        renewed = BETWEEN.sub(lambda found: found[1] + table() + found[2], text)
        if renewed != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(renewed, "utf-8")
    if stale:
        said = "out of date" if "--check" in sys.argv else "renewed"
        print(f"{', '.join(stale)}: {said}")
    return 1 if stale and "--check" in sys.argv else 0


def table() -> str:
    dispatch, arrays, processes = (read(name) for name in ("dispatch", "arrays", "processes"))
    one = cell(dispatch, case="placed", devices=1, leaves=1)
    ten = cell(dispatch, case="placed", devices=8, leaves=10)
    many = cell(processes, processes="2 x 2", leaves=100)
    row = cell(arrays, case="row", bytes=4096, leaves=1)
    put = cell(arrays, case="replicate", input="numpy", bytes=64 * 2**20, leaves=1)
    lines = [
        "| | `jax.pmap` today | `pmapx.pmap` | `jit(shard_map)` by hand |",
        "|---|---|---|---|",
        "| the code you have | fails on removed functions | runs unchanged | has to be rewritten |",
        "| an input committed to another device | `ValueError` | resharded, and reported | "
        "`ValueError` |",
        "| a pmap in a pmap | `ValueError` | one program on a 2-D mesh | the same, by hand |",
        "| gradient, then `pmean` | correct | correct | "
        "N times too large unless `check_vma=False` |",
        measured("a call: 1 device, 1 leaf", one),
        measured("a call: 8 devices, 10 leaves", ten),
        measured("a step in 2 processes, 100 leaves", many),
        f"| reading one 4 KB shard | {shown(row['x[0]'])} (`x[0]`) | {shown(row['unreplicate'])} | "
        f"{shown(row['x[0]'])} (`x[0]`) |",
        f"| 64 MB replicated to 8 devices | removed; {shown(put['drop-in'])} with the guide's "
        "drop-in | "
        f"{shown(put['pmapx'])} | {shown(put['np.stack'])} with `np.stack` |",
        "",
        f"Measured on {dispatch['date']} with {dispatch['machine']}.",
        "`make bench-docs` measures again and updates this table.",
        "",
    ]
    return "\n".join(lines)


def read(name: str) -> dict:
    return json.loads((CHECKOUT / "docs" / "assets" / f"{name}.json").read_text("utf-8"))


def cell(result: dict, **wanted: object) -> dict[str, float]:
    (found,) = [
        each["us"]
        for each in result["cells"]
        if all(each.get(name) == value for name, value in wanted.items())
    ]
    return found


def measured(what: str, us: dict[str, float]) -> str:
    times = [shown(us[name]) for name in ("jax.pmap", "pmapx", "hand-written")]
    return f"| {what} | " + " | ".join(times) + " |"


def shown(us: float) -> str:
    if us < 100:
        return f"{us:.1f} µs"
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.{1 if us < 10_000 else 0}f} ms"


if __name__ == "__main__":
    sys.exit(main())
