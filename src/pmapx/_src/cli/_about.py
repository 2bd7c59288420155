"""Versions, devices and what pmapx detects, for ``pmapx info`` and bug reports."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from pmapx._version import __version__

# Distributions that matter to a program with pmap; only installed ones are shown.
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

    A subprocess queries the devices, so that an accelerator that hangs costs at most ``timeout``
    seconds.

    >>> sorted(about())
    ['cluster', 'devices', 'fastpath', 'frameworks', 'platform', 'settings', 'tools', 'versions']
    """
    queried = _query_in_subprocess(timeout)
    return {
        "versions": {
            "pmapx": __version__,
            "python": platform.python_version(),
            **_installed(_CORE),
            **_installed(_PLUGINS),
        },
        "platform": platform.platform(),
        "devices": queried["devices"],
        "cluster": queried["cluster"],
        "fastpath": queried["fastpath"],
        "tools": {name: _version(name) for name in _TOOLS},
        "frameworks": _installed(_FRAMEWORKS),
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("JAX_", "PMAPX_")) or name == "XLA_FLAGS"
        },
    }


def as_text(facts: dict[str, Any]) -> str:
    """Returns the result of ``about`` as a table.

    >>> facts = {"versions": {"pmapx": "0.1.0"}, "platform": "Linux", "settings": {}}
    >>> facts |= {"devices": {"error": "no answer"}, "cluster": None, "fastpath": None}
    >>> print(as_text(facts | {"tools": {"click": None}, "frameworks": {"flax": "0.12.8"}}))
    pmapx         0.1.0
    platform      Linux
    devices       none: no answer
    cluster       none detected
    fast path     unknown
    pmapx[tools]  click missing
    frameworks    flax 0.12.8
    """
    rows = list(facts["versions"].items())
    rows += [("platform", facts["platform"]), ("devices", _devices(facts["devices"]))]
    rows += [("cluster", _cluster(facts["cluster"])), ("fast path", _fastpath(facts["fastpath"]))]
    rows += [
        ("pmapx[tools]", _listed(facts["tools"])),
        ("frameworks", _listed(facts["frameworks"])),
    ]
    rows += list(facts["settings"].items())
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _devices(devices: dict[str, Any]) -> str:
    if "error" in devices:
        return f"none: {devices['error']}"
    return f"{devices['count']} {devices['platform']} ({', '.join(devices['kinds'])})"


def _cluster(cluster: dict[str, Any] | None) -> str:
    if cluster is None:
        return "none detected"
    process, processes = (
        "?" if cluster[k] is None else cluster[k] for k in ("process", "processes")
    )
    return (
        f"{cluster['kind']} (detected by {cluster['found_by']}): process {process} of {processes}"
    )


def _fastpath(pieces: dict[str, Any] | None) -> str:
    if pieces is None:
        return "unknown"
    if pieces["public only"]:
        return "off: PMAPX_PUBLIC_ONLY is set"
    missing = [
        f"{piece} ({found})"
        for piece, found in pieces.items()
        if found is not True and piece != "public only"
    ]
    return f"on, except {', '.join(missing)}" if missing else "on"


def _listed(versions: dict[str, str | None]) -> str:
    shown = [f"{name} {version or 'missing'}" for name, version in versions.items()]
    return ", ".join(shown) or "none that pmapx is tested with"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(distributions: tuple[str, ...]) -> dict[str, str]:
    versions = {name: _version(name) for name in distributions}
    return {name: version for name, version in versions.items() if version is not None}


def _query_in_subprocess(timeout: float) -> dict[str, Any]:
    """Runs this module; its last line of output is the answer, since JAX may print warnings."""
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
    return json.loads(done.stdout.splitlines()[-1])


def _query() -> dict[str, Any]:
    """Returns what only a process that imports JAX and initializes its devices can know."""
    import dataclasses

    import jax

    from pmapx._src import fastpath
    from pmapx._src.distributed.initialize import find_cluster

    cluster = find_cluster(os.environ)
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
        # The probes need devices.
        "fastpath": None if "error" in found else fastpath.probed_pieces(),
    }


if __name__ == "__main__":
    print(json.dumps(_query()))
