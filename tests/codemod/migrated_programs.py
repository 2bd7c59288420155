"""Programs migrated in every style, run before and after, and compared."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from example_programs import PROGRAMS, Program, run

from pmapx._src.codemod import migration


@dataclasses.dataclass(frozen=True)
class Style:
    """How programs are migrated.

    ``mode`` is how a program that leaves nothing must run after; ``tolerance`` how far results may
    be apart, relative to the largest of each array: 0 is to the bit.
    """

    options: Callable[[Program], dict[str, Any]]
    mode: str = "plain"
    tolerance: float = 0.0


def named(program):
    """The replicated style, told what is replicated."""
    return {"style": "replicated", "named": program.expected("replicated", "replicated") or []}


# A new style is a line here.
STYLES = {
    "stacked": Style(lambda program: {"style": "stacked"}),
    "global": Style(lambda program: {}, tolerance=1e-5),
    "pmapx": Style(lambda program: {"to": "pmapx"}, mode="pmapx"),
    # Without its axis of devices the state is another shape to XLA, which then fuses and adds in
    # another order; a few steps of training carry the last bit further.
    "replicated": Style(named, tolerance=1e-5),
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


def wrong_after_migration(programs, folder, styles=tuple(STYLES)):
    """Run programs before and after; what differs, by program and style."""
    jobs = {f"{program.name}, before": (program, "installed") for program in programs}
    for style in styles:
        for program in programs:
            copy, outcomes = migrated(program, style, folder / style)
            # What is left is still pmap.
            is_left = any(each.reason for each in outcomes)
            jobs[f"{program.name}, {style}"] = (
                copy,
                "installed" if is_left else STYLES[style].mode,
            )
    results = run(jobs, folder / "results.pickle")
    wrong = {}
    for style in styles:
        for program in programs:
            name = f"{program.name}, {style}"
            tolerance = program.expected("tolerance", style) or STYLES[style].tolerance
            found = differences(results[f"{program.name}, before"], results[name], tolerance)
            if found:
                wrong[name] = found
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
        if old.dtype.kind not in "fc":
            return f"{path}: {old} became {new}"
        apart = np.max(np.abs(old - new)) / np.max(np.abs(old))
        if not apart <= tolerance:
            return f"{path}: {apart:.1e} apart, of the largest"
    return ""
