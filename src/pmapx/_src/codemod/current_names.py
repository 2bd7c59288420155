"""Names that JAX removed, replaced by the safe fixes of ``pmapx check`` after the rewrite."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from pmapx._src.codemod.write.rewrite import Rewriting
from pmapx._src.lint import fixing, rules
from pmapx._src.lint.finding import Finding
from pmapx._src.source import files as sources
from pmapx._src.source.name_search import NameSearch

# Removed names, and the option of make_mesh that was renamed.
_CODES = ("PMX51", "PMX563")


def with_current_names(
    paths: Sequence[str], rewritten: Sequence[Rewriting]
) -> tuple[list[Rewriting], int]:
    """Returns the files with current names, and how many names were replaced.

    A file without a use of pmap is changed too: the program needs all its files to run.
    """
    by_path = {file.path: file for file in rewritten}
    done, count = [], 0
    for path in paths:
        file = by_path.get(path)
        data = sources.read_bytes(path) if file is None else file.after
        if isinstance(data, bytes) and _search().is_in(data):
            # A removed name is one of this file's own imports: the other files need not be read.
            fixed = fixing.fix_text(path, data, _is_removed, is_unsafe=False)
            count += len(fixed.fixed)
            if fixed.fixed:
                file = file or Rewriting(path, data, data, ())
                file = dataclasses.replace(file, after=fixed.after)
        if file is not None:
            done.append(file)
    return done, count


def _is_removed(finding: Finding) -> bool:
    return finding.code.startswith(_CODES) and not finding.is_deprecation


@functools.cache
def _search() -> NameSearch:
    wanted = (rule for code, rule in rules.all_rules().items() if code.startswith(_CODES))
    return NameSearch(frozenset(name for rule in wanted for name in rule.names))
