"""Callbacks for modules when they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each of the named modules after its import."""

    def __init__(self, names: Sequence[str], callback: Callable[[types.ModuleType], None]) -> None:
        self._names = frozenset(names)
        self._callback = callback

    def start(self) -> None:
        """Calls the callback for modules that are already imported, and hooks later imports."""
        for name in sorted(self._names & set(sys.modules)):
            self._callback(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module by the other finders, and adds the callback to its loader."""
        if fullname not in self._names:
            return None
        for finder in sys.meta_path:
            find: Any = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._hook(spec.loader)
                return spec
        return None

    def _hook(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                self._callback(module)

        loader.exec_module = exec_module
