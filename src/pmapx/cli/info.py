"""``pmapx info``: what a bug report needs."""

from __future__ import annotations

import json
from typing import Any

import click

from pmapx.about import about


@click.command("info")
@click.option("--json", "is_json", is_flag=True, help="As JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the devices.",
)
def command(is_json: bool, timeout: float) -> None:
    """Show versions, devices and what was detected, for bug reports.

    \b
    Examples:
      pmapx info
      pmapx info --json > info.json
    """
    facts = about(timeout)
    click.echo(json.dumps(facts, indent=2) if is_json else _table(facts))


def _table(facts: dict[str, Any]) -> str:
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


def _fastpath(pieces: dict[str, bool] | None) -> str:
    if pieces is None:
        return "not known"
    if pieces["public only"]:
        return "off: PMAPX_PUBLIC_ONLY is set"
    missing = [
        piece for piece, is_there in pieces.items() if not is_there and piece != "public only"
    ]
    return f"on, but for: {', '.join(missing)}" if missing else "on"


def _listed(versions: dict[str, str | None]) -> str:
    shown = [f"{name} {version or 'missing'}" for name, version in versions.items()]
    return ", ".join(shown) or "none of the frameworks that pmapx is tested with"
