"""What is here: versions, devices and what pmapx found, for ``pmapx info`` and bug reports."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from pmapx._version import __version__

# Distributions that matter to a program with pmap; those that are not installed are not shown.
_CORE = ("jax", "jaxlib", "numpy")
_PLUGINS = ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "jax-metal")
_TOOLS = ("click", "rich")
_FRAMEWORKS = (
    "brax",
    "chex",
    "dm-haiku",
    "equinox",
    "flax",
    "numpyro",
    "optax",
    "orbax-checkpoint",
)


def about(timeout: float = 60) -> dict[str, Any]:
    """Returns what a bug report needs, as plain data.

    The devices are asked for in a process of its own, so that an accelerator that does not answer
    costs ``timeout`` seconds and no more.

    >>> sorted(about())
    ['cluster', 'devices', 'fastpath', 'frameworks', 'platform', 'settings', 'tools', 'versions']
    """
    asked = _asked(timeout)
    return {
        "versions": {
            "pmapx": __version__,
            "python": platform.python_version(),
            **_installed(_CORE),
            **_installed(_PLUGINS),
        },
        "platform": platform.platform(),
        "devices": asked["devices"],
        "cluster": asked["cluster"],
        "fastpath": asked["fastpath"],
        "tools": {name: _version(name) for name in _TOOLS},
        "frameworks": _installed(_FRAMEWORKS),
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("JAX_", "PMAPX_")) or name == "XLA_FLAGS"
        },
    }


def as_text(facts: dict[str, Any]) -> str:
    """Returns what ``about`` found as a table.

    >>> facts = {"versions": {"pmapx": "0.1.0"}, "platform": "Linux", "settings": {}}
    >>> facts |= {"devices": {"error": "no answer"}, "cluster": None, "fastpath": None}
    >>> print(as_text(facts | {"tools": {"click": None}, "frameworks": {"flax": "0.12.8"}}))
    pmapx         0.1.0
    platform      Linux
    devices       none: no answer
    cluster       none found
    fast path     not known
    pmapx[tools]  click missing
    beside it     flax 0.12.8
    """
    rows = list(facts["versions"].items())
    rows += [("platform", facts["platform"]), ("devices", _devices(facts["devices"]))]
    rows += [("cluster", _cluster(facts["cluster"])), ("fast path", _fastpath(facts["fastpath"]))]
    rows += [("pmapx[tools]", _listed(facts["tools"])), ("beside it", _listed(facts["frameworks"]))]
    rows += list(facts["settings"].items())
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _devices(devices: dict[str, Any]) -> str:
    if "error" in devices:
        return f"none: {devices['error']}"
    return f"{devices['count']} {devices['platform']} ({', '.join(devices['kinds'])})"


def _cluster(cluster: dict[str, Any] | None) -> str:
    if cluster is None:
        return "none found"
    process, processes = (
        "?" if cluster[k] is None else cluster[k] for k in ("process", "processes")
    )
    return f"{cluster['kind']}, by {cluster['found_by']}: process {process} of {processes}"


def _fastpath(pieces: dict[str, Any] | None) -> str:
    if pieces is None:
        return "not known"
    if pieces["public only"]:
        return "off: PMAPX_PUBLIC_ONLY is set"
    missing = [
        f"{piece} ({found})"
        for piece, found in pieces.items()
        if found is not True and piece != "public only"
    ]
    return f"on, but for: {', '.join(missing)}" if missing else "on"


def _listed(versions: dict[str, str | None]) -> str:
    shown = [f"{name} {version or 'missing'}" for name, version in versions.items()]
    return ", ".join(shown) or "none of the frameworks that pmapx is tested with"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(distributions: tuple[str, ...]) -> dict[str, str]:
    versions = {name: _version(name) for name in distributions}
    return {name: version for name, version in versions.items() if version is not None}


def _asked(timeout: float) -> dict[str, Any]:
    """What a process that imports JAX tells; its last line is what counts, since JAX may warn."""
    unknown: dict[str, Any] = {"cluster": None, "fastpath": None}
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pmapx._src.cli._about"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return unknown | {"devices": {"error": f"no answer in {timeout:g} seconds"}}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return unknown | {"devices": {"error": last[0]}}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _answer() -> dict[str, Any]:
    """What has to import JAX, and start its devices, to be known."""
    import dataclasses

    import jax

    from pmapx._src import fastpath
    from pmapx._src.distributed import initialize as processes

    cluster = processes.find_cluster(os.environ)
    found: dict[str, Any]
    try:
        kinds = [device.device_kind for device in jax.devices()]
        found = {
            "platform": jax.default_backend(),
            "count": len(kinds),
            "kinds": sorted(set(kinds)),
        }
    except RuntimeError as error:
        found = {"error": " ".join(str(error).split())}
    return {
        "devices": found,
        "cluster": None if cluster is None else dataclasses.asdict(cluster),
        # The probes run on devices.
        "fastpath": None if "error" in found else fastpath.probed_pieces(),
    }


if __name__ == "__main__":
    print(json.dumps(_answer()))
