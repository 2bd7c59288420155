"""Turn the figures of `dispatch.py --json` into the plot and the table of the documentation."""

import argparse
import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from dispatch import verdict
from turns import shown

ASSETS = pathlib.Path(__file__).parent.parent / "docs" / "assets"
STYLES = {
    "hand-written": ("#444444", "o", "jit(shard_map), hand-written"),
    "jax.pmap": ("#d95f02", "s", "jax.pmap"),
    "pmapx": ("#1b9e77", "^", "pmapx.pmap"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", nargs="?", type=pathlib.Path, default=ASSETS / "dispatch.json")
    result = json.loads(parser.parse_args().json.read_text())
    ASSETS.mkdir(exist_ok=True)
    plot(result["cells"], ASSETS / "dispatch.svg")
    (ASSETS / "dispatch.md").write_text(table(result), encoding="utf-8")
    # Measured by hand where there is a GPU: dispatch.py --json docs/assets/dispatch-gpu.json
    if (on_gpu := ASSETS / "dispatch-gpu.json").exists():
        on_gpu.with_suffix(".md").write_text(table(json.loads(on_gpu.read_text())), "utf-8")


def plot(cells: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Cost against leaves, one panel a device count, for correctly placed arrays."""
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "pmapx", "font.size": 9}
    counts = sorted({c["devices"] for c in cells})
    figure, panels = plt.subplots(
        1, len(counts), figsize=(3.2 * len(counts), 3), sharey=True, layout="constrained"
    )
    for devices, panel in zip(counts, panels, strict=True):
        rows = [c for c in cells if c["devices"] == devices and c["case"] == "placed"]
        for name, (color, marker, label) in STYLES.items():
            leaves, us = [c["leaves"] for c in rows], [c["us"][name] for c in rows]
            panel.loglog(leaves, us, color=color, marker=marker, markersize=4, label=label)
        panel.set_title(f"{devices} device{'s' if devices > 1 else ''}")
        panel.set_xlabel("leaves")
        panel.minorticks_off()
        panel.grid(True, linewidth=0.3)
    panels[0].set_ylabel("µs per call")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def table(result: dict[str, Any]) -> str:
    lines = [
        f"Measured on {result['date']}: {result['machine']}.",
        "",
        "| case | devices | leaves | hand-written | pmapx | jax.pmap | noise "
        "| jax.pmap ÷ hand-written | pmapx ÷ hand-written | target |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for c in result["cells"]:
        us, ratio = c["us"], c["ratio"]
        cells = [
            c["case"],
            str(c["devices"]),
            str(c["leaves"]),
            shown(us["hand-written"]),
            shown(us["pmapx"]),
            shown(us.get("jax.pmap")),
            f"{abs(ratio['again'] - 1):.1%}",
            f"{ratio['jax.pmap']:.2f}" if "jax.pmap" in ratio else "-",
            f"{ratio['pmapx']:.2f}",
            verdict(c),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
