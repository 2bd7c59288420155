"""What is known of a program's pmaps: from a run of it, and from what the user names."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pmapx.migrate.module import Module


@dataclasses.dataclass(slots=True)
class Record:
    """What the run showed of one pmap.

    ``unequal`` are the arguments whose rows differed, ``varies`` the results that differ between
    devices by themselves, and ``with_`` for each argument the results that differ if it does;
    each with a text that says where.
    """

    function: str
    calls: int
    problem: str
    names: dict[str, str]
    unequal: dict[str, str]
    arity: int | str | None
    varies: dict[str, str]
    with_: dict[str, dict[str, str]]


class Evidence:
    """Records of a run, by the nodes that they are of."""

    def __init__(self, seen: Iterable[Mapping[str, Any]] = (), *, has_run: bool = False) -> None:
        """Takes what the processes of the command wrote."""
        self.has_run = has_run
        self._records: dict[tuple[Any, ...], Record] = {}
        self._rows: set[tuple[Any, ...]] = set()
        for process in seen:
            self._rows |= {tuple(span) for span in process["rows"]}
            for site in process["sites"]:
                self._add(tuple(site["span"]), site)

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """Reads the folder that ``watching`` wrote to."""
        files = sorted(folder.glob("replicated-*.json"))
        return cls([json.loads(file.read_text()) for file in files], has_run=True)

    def _add(self, span: tuple[Any, ...], site: Mapping[str, Any]) -> None:
        if not site["calls"]:
            return
        new = Record(
            site["function"], site["calls"], site["problem"], site["names"], site["unequal"],
            site["arity"], site["varies"], site["with"],
        )  # fmt: skip
        seen = self._records.get(span)
        if seen is None:
            self._records[span] = new
            return
        # The same text maps again, perhaps another function: what holds for all holds.
        if seen.arity != new.arity:
            seen.problem = seen.problem or "it maps functions with different results"
        seen.calls += new.calls
        seen.problem = seen.problem or new.problem
        seen.names.update(new.names)
        seen.unequal = {**new.unequal, **seen.unequal}
        seen.varies = {**new.varies, **seen.varies}
        for argument, outputs in new.with_.items():
            seen.with_[argument] = {**outputs, **seen.with_.get(argument, {})}

    def record(self, module: Module, node: ast.AST) -> Record | None:
        """Returns what the run showed of a pmap, None if it was never called."""
        return self._records.get(_span(module, node))

    def takes_row(self, module: Module, node: ast.AST) -> bool:
        """Tells whether an index was seen to take a row of a stacked array."""
        return _span(module, node) in self._rows


def _span(module: Module, node: ast.AST) -> tuple[Any, ...]:
    return (
        os.path.realpath(module.path),
        node.lineno,  # type: ignore[attr-defined]
        node.col_offset,  # type: ignore[attr-defined]
        node.end_lineno,  # type: ignore[attr-defined]
        node.end_col_offset,  # type: ignore[attr-defined]
    )
