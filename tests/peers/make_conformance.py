"""Runs JAX's own pmap tests with `jax.pmap` and with pmapx, and writes the tables of the docs.

PMAPX_JAX_CHECKOUT=jax-checkout PMAPX_ORIGINAL_CHECKOUT=jax-0.7.2 make conformance-docs
"""

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax_suite

import pmapx

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
OUTCOMES = ("passed", "skipped", "failed")
TODAY = {
    "jax.pmap": lambda suite, folder: jax_suite.run(suite, folder, with_pmapx=False),
    "pmapx.pmap": jax_suite.run,
}
ORIGINAL = {
    "jax.pmap": lambda suite, folder: jax_suite.run_original(suite, folder, "jax"),
    "pmapx.pmap": lambda suite, folder: jax_suite.run_original(suite, folder, "pmapx"),
    "pmapx.install()": jax_suite.run_original,
}


def main() -> None:
    """Renews the table of each suite whose checkout is named."""
    named = 0
    for variable, stem, runs in (
        ("PMAPX_JAX_CHECKOUT", "conformance", TODAY),
        ("PMAPX_ORIGINAL_CHECKOUT", "conformance_original", ORIGINAL),
    ):
        suite = Path(os.environ.get(variable) or os.devnull, "tests", "pmap_test.py")
        if suite.is_file():
            named += 1
            write(stem, suite.resolve(), runs)
    if not named:
        sys.exit(
            "PMAPX_JAX_CHECKOUT names a checkout of JAX at the tag of the one installed, and "
            "PMAPX_ORIGINAL_CHECKOUT one at jax-v0.7.2; neither has tests/pmap_test.py"
        )


def write(stem: str, suite: Path, runs: dict) -> None:
    """Runs a suite in each way, and writes the figures and the table."""
    rows = {}
    for name, run in runs.items():
        print(f"JAX's own tests ({stem}) with {name} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = run(suite, folder)
        rows[name] = {kind: len(found[kind]) for kind in OUTCOMES}
        rows[name]["names of failed"] = sorted(found["failed"])
    result = {
        "machine": f"pmapx {pmapx.__version__}, JAX {jax.__version__}, "
        f"Python {platform.python_version()}, 8 cpu devices",
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }
    (ASSETS / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (ASSETS / f"{stem}.md").write_text(table(result))
    print(table(result))


def table(result: dict) -> str:
    lines = [f"Run on {result['date']}: {result['machine']}.", ""]
    lines += ["| | tests | pass | skip | fail |", "|---|--:|--:|--:|--:|"]
    for name, row in result["rows"].items():
        counts = [row[kind] for kind in OUTCOMES]
        lines.append(f"| `{name}` | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
