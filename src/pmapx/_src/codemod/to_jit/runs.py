"""A run of the user's command on one version of the code, in a copy of its tree."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pmapx._src.codemod.evidence.evidence import Evidence
from pmapx._src.codemod.evidence.proof_run import ProofError, prove
from pmapx._src.verify.runs import default_devices, deterministic
from pmapx._src.verify.tree_copies import copy_beside
from pmapx._src.watch.command import INSTALL, run


class Command:
    """The user's command, and how it is run."""

    def __init__(
        self,
        words: Sequence[str],
        root: Path,
        *,
        devices: int | None = None,
        timeout: float | None = None,
        topology: str | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """``topology`` is a target for which its functions are audited too."""
        self.words = list(words)
        self.root = Path(os.path.realpath(root))
        self.devices = default_devices(os.environ) if devices is None else devices
        self.timeout = timeout
        self.topology = topology
        self.progress = progress

    def prove(self) -> Evidence:
        """Runs it on the code as it is; returns what its maps do."""
        show = None if self.progress is None else functools.partial(self.progress, "as it is")
        return prove(
            self.words, devices=self.devices, timeout=self.timeout, root=self.root, progress=show
        )

    @contextmanager
    def ran(
        self,
        what: str,
        listener: str,
        changed: Mapping[Path, bytes],
        settings: Mapping[str, Any],
        records: Path,
        *,
        is_legacy: bool,
    ) -> Iterator[tuple[int | None, str, Path]]:
        """Runs it on the tree with changed files; yields the status, its output and the tree."""
        with tempfile.TemporaryDirectory(prefix="pmapx-", ignore_cleanup_errors=True) as kept:
            copy = copy_beside(self.root, Path(kept, "tree"), changed)
            tree = Path(os.path.realpath(copy.path))
            given = {**settings, "root": str(tree), "topology": self.topology}
            text = json.dumps(given)
            (records / "settings.json").write_text(text, encoding="utf-8")
            log = records / "output"
            show = None if self.progress is None else functools.partial(self.progress, what)
            here = os.path.relpath(os.path.realpath(os.curdir), self.root)
            try:
                status = run(
                    self.words,
                    [*([INSTALL] if is_legacy else []), listener],
                    records,
                    devices=self.devices,
                    cwd=tree / here,
                    env=deterministic(os.environ),
                    log=log,
                    timeout=self.timeout,
                    progress=show,
                )
            except FileNotFoundError as error:
                raise ProofError(str(error)) from None
            yield status, log.read_text(errors="replace"), tree

    def failure(self, status: int | None, output: str) -> str:
        """Returns in a line why a run did not end well, empty if it did."""
        if status is None:
            return f"the command did not end within {self.timeout:g} seconds"
        if not status:
            return ""
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        last = f": {(errors or lines)[-1].strip()[:200]}" if lines else ""
        return f"the command failed with status {status}{last} ({shlex.join(self.words)[:120]})"
