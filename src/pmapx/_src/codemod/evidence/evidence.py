"""What is known of a program's pmaps: from a run of it, and from what the user names."""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmapx._src.analysis.module import Module
from pmapx._src.watch import record_files
from pmapx._src.watch.tree_copies import TreeCopy


@dataclasses.dataclass(slots=True)
class Record:
    """What the run showed of one pmap.

    ``unequal`` are the arguments whose shards differed, ``varies`` the results that differ between
    devices by themselves, and ``with_`` for each argument the results that differ if it does;
    each with a text that describes where. ``tuples`` are the results that are tuples or lists,
    ``arrays`` for each result the names of its parts that are arrays.
    """

    function: str
    calls: int
    problem: str
    names: dict[str, str]
    unequal: dict[str, str]
    arity: int | str | None
    varies: dict[str, str]
    with_: dict[str, dict[str, str]]
    tuples: list[str]
    arrays: dict[str, list[str]]


class Evidence:
    """Records of a run, by the nodes that they are of."""

    def __init__(
        self,
        seen: Iterable[Mapping[str, Any]] = (),
        *,
        has_run: bool = False,
        copy: TreeCopy | None = None,
    ) -> None:
        """Reads the records of a run in a copy of the tree."""
        self.has_run = has_run
        self._copy = copy
        self._records: dict[tuple[Any, ...], Record] = {}
        self._indexed: set[tuple[Any, ...]] = set()
        for process in seen:
            self._indexed |= {self._original(span) for span in process["indexed"]}
            for site in process["sites"]:
                span = self._original(site["span"])
                self._add(span, site)
                for outer in site["through"]:
                    self._add((span, self._original(outer)), site)

    @property
    def not_reached(self) -> str:
        """Why a run does not tell what a line does, empty without a run."""
        return ": the run did not reach this line" if self.has_run else ""

    @classmethod
    def read(cls, folder: Path, copy: TreeCopy) -> Evidence:
        """Reads the folder that ``proof_listener`` wrote to."""
        return cls(record_files.read(folder, "replicated"), has_run=True, copy=copy)

    def _original(self, span: Sequence[Any]) -> tuple[Any, ...]:
        """Returns a place in the user's files of one in the copy."""
        path, *rest = span
        return (path if self._copy is None else self._copy.original(path), *rest)

    def _add(self, span: tuple[Any, ...], site: Mapping[str, Any]) -> None:
        if not site["calls"]:
            return
        # A copy: the same site is kept by what it was made through, too.
        site = copy.deepcopy(dict(site))
        new = Record(
            site["function"], site["calls"], site["problem"], site["names"], site["unequal"],
            site["arity"], site["varies"], site["with"], site["tuples"],
            site["arrays"],
        )  # fmt: skip
        seen = self._records.get(span)
        if seen is None:
            self._records[span] = new
            return
        # The same text maps again, perhaps another function.
        self._records[span] = _both(seen, new)

    def record(self, module: Module, node: ast.AST) -> Record | None:
        """Returns what the run showed of a pmap, None if it was never called."""
        return self._records.get(_span(module, node))

    def record_through(
        self, module: Module, node: ast.AST, uses: Iterable[tuple[Module, ast.AST]]
    ) -> Record | None:
        """Returns the same of what a wrapper's pmap made for some of its users."""
        found: Record | None = None
        for user, use in uses:
            one = self._records.get((_span(module, node), _span(user, use)))
            if one is not None:
                found = one if found is None else _both(found, one)
        return found

    def takes_shard(self, module: Module, node: ast.AST) -> bool:
        """Returns whether an index was seen to take a shard of a stacked array."""
        return _span(module, node) in self._indexed


def _both(one: Record, other: Record) -> Record:
    """Returns what holds for two functions that were mapped alike."""
    problem = one.problem or other.problem
    if one.arity != other.arity:
        problem = problem or "it maps functions with different results"
    return Record(
        one.function,
        one.calls + other.calls,
        problem,
        {**one.names, **other.names},
        {**other.unequal, **one.unequal},
        one.arity,
        {**other.varies, **one.varies},
        {
            argument: {**other.with_.get(argument, {}), **one.with_.get(argument, {})}
            for argument in {**one.with_, **other.with_}
        },
        [result for result in one.tuples if result in other.tuples],
        {
            result: [name for name in names if name in other.arrays.get(result, ())]
            for result, names in one.arrays.items()
        },
    )


def _span(module: Module, node: ast.AST) -> tuple[Any, ...]:
    return (
        os.path.realpath(module.path),
        node.lineno,  # type: ignore[attr-defined]
        node.col_offset,  # type: ignore[attr-defined]
        node.end_lineno,  # type: ignore[attr-defined]
        node.end_col_offset,  # type: ignore[attr-defined]
    )
