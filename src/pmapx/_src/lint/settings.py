"""What the user asked for: the table ``[tool.pmapx]`` of pyproject.toml, and the options."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pmapx._src.lint.finding import Finding, Release
from pmapx._src.source.command_error import CommandError
from pmapx._src.source.discovery import is_excluded
from pmapx._src.source.location import Confidence


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What to report, and where.

    ``target_jax`` is the release whose removals, changes and deprecations are reported. By default
    it is the newest, without what is only deprecated there.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    confidence: Confidence = Confidence.MEDIUM
    target_jax: Release | None = None
    # The file of known findings.
    baseline: str | None = None

    def __post_init__(self) -> None:
        """Refuses codes that begin no rule's."""
        listed = [*self.select, *self.ignore]
        listed += [code for _, codes in self.per_file_ignores for code in codes]
        if listed:
            _refuse_unknown(listed)

    @property
    def codes(self) -> frozenset[str]:
        """The codes that are selected."""
        from pmapx._src.lint import rules

        return rules.selected(self.select, self.ignore)

    def reports(self, finding: Finding) -> bool:
        """Returns whether a finding is to be reported."""
        path, code = finding.place.path, finding.code
        if finding.confidence < self.confidence or code not in self.codes:
            return False
        if self.target_jax is not None:
            if finding.since is not None and finding.since > self.target_jax:
                return False
        elif finding.is_deprecation and not self.select:
            return False
        return not any(
            code.startswith(codes) and is_excluded(path, os.path.basename(path), (pattern,))
            for pattern, codes in self.per_file_ignores
        )


def _refuse_unknown(codes: Sequence[str]) -> None:
    # Most runs name no rule, and need none before a file has a use.
    from pmapx._src.lint import rules

    for code in codes:
        if not any(known.startswith(code) for known in rules.all_rules()):
            close = _closest(code, list(rules.all_rules()), 3, 0.4)
            closest = f"; closest are {', '.join(close)}"
            hint = closest if close else "; pmapx explain lists them"
            raise CommandError(f"no rule {code!r}{hint}")


def _closest(word: str, known: Sequence[str], most: int, likeness: float = 0.6) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, known, most, likeness)


_KEYS = ("select", "ignore", "exclude", "per-file-ignores", "confidence", "target-jax", "baseline")
# What JAX removed before this release is reported for every target.
_OLDEST: Release = (0, 8)


def load(paths: Sequence[str]) -> dict[str, Any]:
    """Returns the table of the nearest pyproject.toml at or above what the paths share."""
    file = _nearest(paths)
    if file is None:
        return {}
    import tomllib

    try:
        with open(file, "rb") as opened:
            content = tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {' '.join(str(error).split())}") from None
    tools = content.get("tool", {})
    table = tools.get("pmapx", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise CommandError(f"{file}: tool.pmapx must be a table")
    for key in table:
        if key not in _KEYS:
            close = _closest(key, _KEYS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(_KEYS)}"
            raise CommandError(f"{file}: no setting {key!r} in [tool.pmapx]{hint}")
    if isinstance(table.get("baseline"), str):
        return {**table, "baseline": os.path.join(os.path.dirname(file), table["baseline"])}
    return table


def make(table: Mapping[str, Any], **options: Any) -> Settings:
    """Puts the table and the command line's options together; options that are given win.

    >>> make({"ignore": ["PMX5"]}, select=("PMX542",)).select
    ('PMX542',)
    """
    merged = {key.replace("-", "_"): held for key, held in table.items()}
    merged.update({key: held for key, held in options.items() if held})
    # Codes on the command line are on top of the file's, patterns too.
    for key in ("ignore", "exclude"):
        both = [*_strings(key, table.get(key, ())), *(options.get(key) or ())]
        merged[key] = tuple(dict.fromkeys(both))
    merged["select"] = _strings("select", merged.get("select", ()))
    per_file = merged.get("per_file_ignores", {})
    if not isinstance(per_file, dict):
        raise CommandError("per-file-ignores must be a table of patterns and lists of codes")
    return Settings(
        _codes(merged["select"]),
        _codes(merged["ignore"]),
        merged["exclude"],
        tuple((name, _codes(_strings(name, codes))) for name, codes in per_file.items()),
        _confidence(merged.get("confidence", "medium")),
        _release(merged.get("target_jax")),
        _path(merged.get("baseline")),
    )


def _path(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise CommandError(f"baseline must be the path of a file, not {given!r}")
    return given


def _release(given: Any) -> Release | None:
    if given is None:
        return None
    parts = str(given).split(".") if isinstance(given, str) else []
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise CommandError(f'target-jax is a release of JAX, such as "0.12", not {given!r}')
    release = tuple(map(int, parts))
    if release < _OLDEST:
        raise CommandError(f"target-jax is 0.8 or later, not {given}: pmapx needs JAX 0.8")
    return release


def _confidence(word: Any) -> Confidence:
    try:
        return Confidence[str(word).upper()]
    except KeyError:
        known = ", ".join(str(c) for c in Confidence)
        raise CommandError(f"confidence is one of {known}, not {word!r}") from None


def _strings(key: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(part, str) for part in given):
        raise CommandError(f"{key} must be a list of strings")
    return tuple(given)


def _codes(given: tuple[str, ...]) -> tuple[str, ...]:
    parts = [part.strip().upper() for text in given for part in text.split(",")]
    return tuple(part for part in parts if part and part != "ALL")


def _nearest(paths: Sequence[str]) -> str | None:
    try:
        folder = os.path.commonpath([os.path.abspath(path) for path in paths])
    except ValueError:
        return None
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        file = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(file):
            return file
        if os.path.dirname(folder) == folder:
            return None
        folder = os.path.dirname(folder)
