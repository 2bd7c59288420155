"""The records of a run, read one call at a time."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pmapx._src.verify.record.array_record import Array

# Of a call: the number of inputs, and the dtypes and shapes of inputs and outputs.
Signature = tuple[int, tuple[str, ...], tuple[str, ...]]


@dataclasses.dataclass
class Function:
    """A function that the program made, and where its recorded calls are in the file.

    ``code`` is a hash of its code, or empty if there is none. ``inside`` are the functions in which
    it was only traced, -1 for one that is not watched; ``is_plain`` if it is a jitted function of
    arrays on several devices, in which no mapped function was seen. ``signature`` is of its first
    call, set before functions are matched.
    """

    number: int
    kind: str
    name: str
    file: str
    line: int
    scope: str
    parameters: tuple[str, ...]
    code: str = ""
    count: int = 0
    calls: list[int] = dataclasses.field(default_factory=list)
    orders: list[int] = dataclasses.field(default_factory=list)
    inside: set[int] = dataclasses.field(default_factory=set)
    is_plain: bool = False
    signature: Signature | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call: its inputs and outputs as recorded, or the error that it raised."""

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    error: str


class Records:
    """The records of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.functions: dict[int, Function] = {}
        self.process = 0
        self.processes = 1
        self.devices = 0
        self.strangers: list[str] = []
        self.has_ended = False
        self._recorded = 0
        for what, facts, offset in self._events():
            self._take(what, facts, offset)

    def _events(self) -> Iterator[tuple[str, dict[str, Any], int]]:
        with open(self._path, "rb") as lines:
            while line := lines.readline():
                try:
                    facts = json.loads(line)
                except ValueError:
                    return  # The program was stopped while writing.
                offset = lines.tell()
                if facts["what"] == "call" and not lines.readline().endswith(b"\n"):
                    return
                yield facts.pop("what"), facts, offset

    def _take(self, what: str, facts: dict[str, Any], offset: int) -> None:
        if what == "start":
            self.process, self.processes = facts["process"], facts["processes"]
        elif what == "function":
            facts["parameters"] = tuple(facts["parameters"])
            self.functions[facts["number"]] = Function(**facts)
        elif what == "inside":
            self.functions[facts["function"]].inside.add(facts["outer"])
            if facts["outer"] >= 0:
                self.functions[facts["outer"]].is_plain = False
        elif what == "plain":
            self.functions[facts["function"]].is_plain = True
        elif what == "devices":
            self.devices = facts["devices"]
            # Processes that are launched together may still be separate programs.
            if facts["processes"] > 1:
                self.process, self.processes = facts["process"], facts["processes"]
        elif what == "call":
            function = self.functions[facts["function"]]
            function.calls.append(offset)
            function.orders.append(self._recorded)
            self._recorded += 1
            function.count = facts["number"] + 1
        elif what == "end":
            self.has_ended = True
            self.strangers = facts["strangers"]
            for number, count in facts["counts"].items():
                self.functions[int(number)].count = count

    @property
    def has_calls(self) -> bool:
        """Whether it called or traced mapped functions."""
        return any(
            (function.calls and not function.is_plain) or function.inside
            for function in self.functions.values()
        )

    def call(self, function: Function, number: int) -> Call:
        with open(self._path, "rb") as lines:
            lines.seek(function.calls[number])
            return Call(**json.loads(lines.readline()))

    def values(self, leaf: dict[str, Any], which: str = "values") -> Array | None:
        """Returns the recorded values of a leaf, or its ``sums``; None if there are none."""
        if which not in leaf:
            return None
        offset, dtype, shape = leaf[which]
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.zeros(shape, dtype)
        path = self._path.with_suffix(".values")
        found = np.fromfile(path, dtype=np.dtype(dtype), count=count, offset=offset)
        return found.reshape(shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A command that has ended, and what was recorded in each of its processes.

    ``status`` is None if it was stopped after the timeout. ``failed_first`` is the process of
    ``pmapx run -n`` that failed first, and how.
    """

    status: int | None
    seconds: float
    processes: list[Records]
    output: str
    failed_first: tuple[int, str] | None = None


def read(folder: Path) -> list[Records]:
    """Returns the records of every process that imported JAX, the first that did so first."""
    paths = sorted(folder.glob("*.calls"), key=lambda path: int(path.stem))
    return [Records(path) for path in paths]
