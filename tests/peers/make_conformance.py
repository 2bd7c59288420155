"""Runs JAX's own pmap tests with `jax.pmap` and with pmapx, and writes the table of the docs.

PMAPX_JAX_CHECKOUT=jax-checkout make conformance-docs
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


def main() -> None:
    checkout = os.environ.get("PMAPX_JAX_CHECKOUT", "")
    suite = Path(checkout, "tests", "pmap_test.py")
    if not checkout or not suite.is_file():
        sys.exit("PMAPX_JAX_CHECKOUT must name a checkout of JAX at the tag of the one installed")
    rows = {}
    for name, with_pmapx in (("jax.pmap", False), ("pmapx.pmap", True)):
        print(f"JAX's own tests with {name} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = jax_suite.run(suite.resolve(), folder, with_pmapx=with_pmapx)
        rows[name] = {kind: len(found[kind]) for kind in OUTCOMES}
        rows[name]["names of failed"] = sorted(found["failed"])
    result = {
        "machine": f"pmapx {pmapx.__version__}, JAX {jax.__version__}, "
        f"Python {platform.python_version()}, 8 cpu devices",
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }
    (ASSETS / "conformance.json").write_text(json.dumps(result, indent=1) + "\n")
    (ASSETS / "conformance.md").write_text(table(result))
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
