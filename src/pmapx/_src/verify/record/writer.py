"""The records of a running program: its functions, their calls, and the values of these.

A process has two files. ``PID.calls`` has a line of JSON for each event, and is complete up to its
last line however the program ends; ``PID.values`` has the values, at the offsets in the lines. Both
are bounded: values by their bytes, calls by their number.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

from pmapx._src.verify.limits import MOST_BYTES
from pmapx._src.verify.record.array_record import Noted


class Recorder:
    """The two files of this process."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        self._calls = open(folder / f"{self._pid}.calls", "w", encoding="utf-8")  # noqa: SIM115
        self._values = open(folder / f"{self._pid}.values", "wb")  # noqa: SIM115
        self._lock = threading.Lock()

    def write(self, what: str, **facts: Any) -> None:
        """Appends a line; a forked process writes nothing."""
        if os.getpid() != self._pid:
            return
        line = json.dumps({"what": what, **facts})
        with self._lock:
            self._calls.write(line + "\n")
            self._calls.flush()

    def write_call(
        self, function: int, number: int, inputs: list[Any], outputs: list[Any], error: str
    ) -> None:
        """Appends a call: one line with its function and number, and one with the rest."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            kept = [[self._kept(leaf) for leaf in leaves] for leaves in (inputs, outputs)]
            self._values.flush()
            head = {"what": "call", "function": function, "number": number}
            body = {"inputs": kept[0], "outputs": kept[1], "error": error}
            self._calls.write(f"{json.dumps(head)}\n{json.dumps(body)}\n")
            self._calls.flush()

    def _kept(self, leaf: tuple[dict[str, Any], Noted]) -> dict[str, Any]:
        where, noted = leaf
        facts = {**where, **noted.facts}
        for name, values in (("values", noted.values), ("sums", noted.sums)):
            if values is None:
                continue
            if self._values.tell() + values.nbytes > MOST_BYTES:
                facts["kept"] = "nothing"
                continue
            facts[name] = [self._values.tell(), values.dtype.str, list(values.shape)]
            self._values.write(values.tobytes())
        return facts
