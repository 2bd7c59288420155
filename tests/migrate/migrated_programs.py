"""Programs migrated in every style, run before and after, and compared."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from example_programs import PROGRAMS, Program, run

from pmapx.migrate import migration


@dataclasses.dataclass(frozen=True)
class Style:
    """How programs are migrated; ``mode`` is how a program that leaves nothing must run after."""

    options: Callable[[Program], dict[str, Any]]
    mode: str = "plain"


def named(program):
    """The replicated style, told what is replicated."""
    return {"style": "replicated", "named": program.expected("replicated", "replicated") or []}


# A new style is a line here.
STYLES = {
    "stacked": Style(lambda program: {}),
    "pmapx": Style(lambda program: {"to": "pmapx"}, mode="pmapx"),
    "replicated": Style(named),
}
CHUNK = 8


def chunks(programs):
    """Return the programs to run in one process, by a name for them."""
    kinds = {}
    for program in programs:
        kinds.setdefault(program.libraries[0] if program.libraries else "jax", []).append(program)
    return {
        f"{kind}-{start // CHUNK}": each[start : start + CHUNK]
        for kind, each in kinds.items()
        for start in range(0, len(each), CHUNK)
    }


def of_libraries(is_of_them):
    """Return the programs that need more than JAX and NumPy, or those that do not."""
    return [each for each in PROGRAMS.values() if bool(each.libraries) == is_of_them]


def migrated(program, style, folder):
    """Migrate a copy of a program; the copy and every outcome, in the order of files and lines."""
    copy = program.copied_to(folder)
    done = migration.migrate([str(copy.path)], **STYLES[style].options(copy))
    assert not done.unreadable
    for file in done.changed:
        copy.path.joinpath(file.path).write_bytes(file.after)
    return copy, [each for file in done.files for each in file.outcomes]


def wrong_after_migration(programs, folder):
    """Run programs before and after; what differs, by program and style."""
    before = run(programs, ["installed"] * len(programs), folder / "before.pickle")
    wrong = {}
    for style in STYLES:
        copies, modes = [], []
        for program in programs:
            copy, outcomes = migrated(program, style, folder / style)
            copies.append(copy)
            # What is left is still pmap.
            is_left = any(each.reason for each in outcomes)
            modes.append("installed" if is_left else STYLES[style].mode)
        after = run(copies, modes, folder / f"{style}.pickle")
        for program in programs:
            tolerance = program.expected("tolerance", style)
            found = differences(before[program.name], after[program.name], tolerance)
            if found:
                wrong[f"{program.name}, {style}"] = found
    return wrong


def differences(before, after, tolerance):
    """Return what differs, in words; nothing if all is the same."""
    for which, results in (("before", before), ("after", after)):
        if isinstance(results, str):
            return f"{which}: {results}"
    if [path for path, _ in before] != [path for path, _ in after]:
        return f"before {[path for path, _ in before]}, after {[path for path, _ in after]}"
    for (path, old), (_, new) in zip(before, after, strict=True):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            return f"{path}: {old.dtype}{old.shape} became {new.dtype}{new.shape}"
        if old.tobytes() == new.tobytes():
            continue
        apart = np.max(np.abs(old - new)) / np.max(np.abs(old))
        if not tolerance or not apart <= tolerance:
            return f"{path}: {apart:.1e} apart, of the largest"
    return ""
