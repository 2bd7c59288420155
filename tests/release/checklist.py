"""Checks what docs/releasing.md asks of a release: `make release-check`."""

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
OLDEST = datetime.timedelta(days=30)


def main() -> int:
    missing = list(problems(CHECKOUT, datetime.date.today()))
    for problem in missing:
        print(f"not ready: {problem}")
    print(f"{len(missing)} to do" if missing else "ready to tag")
    return 1 if missing else 0


def problems(checkout: Path, today: datetime.date) -> Iterator[str]:
    """What keeps this tree from being released, one line each."""
    version = written_version(checkout)
    cited = re.search(r"^version: (\S+)$", (checkout / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        yield f"CITATION.cff does not have version {version}"
    changelog = (checkout / "CHANGELOG.md").read_text("utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - (.+)$", changelog, re.MULTILINE)
    if section is None:
        yield f"CHANGELOG.md has no section [{version}]"
    elif (newest := re.search(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)) and (
        newest[1] != version
    ):
        yield f"CHANGELOG.md begins with [{newest[1]}], _version.py has {version}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", section[1]):
        yield f"CHANGELOG.md: [{version}] has no date, but {section[1]!r}"
    for path in sorted((checkout / "docs" / "assets").glob("*.json")):
        yield from stale(path, version, today)
    compared = [sys.executable, str(checkout / "benchmarks" / "compare.py"), "--check"]
    if subprocess.run(compared, capture_output=True, check=False).returncode:
        yield "the table of README.md or docs/index.md is not that of docs/assets: make bench-docs"
    if git(checkout, "status", "--porcelain"):
        yield "uncommitted changes"
    if git(checkout, "tag", "--list", f"v{version}"):
        yield f"the tag v{version} exists"


def stale(path: Path, version: str, today: datetime.date) -> Iterator[str]:
    """Whether figures were measured with another version, or long ago."""
    figures = json.loads(path.read_text("utf-8"))
    machine, date = str(figures.get("machine", "")), str(figures.get("date", ""))
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"{path.name} has no date"
    elif today - datetime.date.fromisoformat(date) > OLDEST:
        yield f"{path.name} is of {date}"
    if f"pmapx {version}" not in machine:
        yield f"{path.name} was not made with pmapx {version}, but with {machine or 'unknown'}"


def written_version(checkout: Path) -> str:
    text = (checkout / "src" / "pmapx" / "_version.py").read_text("utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None, "no version in _version.py"
    return found[1]


def git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=checkout, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
