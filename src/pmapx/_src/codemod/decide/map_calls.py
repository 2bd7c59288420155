"""The calls of each map of a program, in whichever file they are."""

from __future__ import annotations

import ast
import weakref

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.project import Project
from pmapx._src.analysis.sites import Site
from pmapx._src.analysis.values import Mapped, Place

_Calls = dict[Place, list[tuple[Module, ast.Call]]]
# By project, with how many files it had when it was read.
_KNOWN: weakref.WeakKeyDictionary[Project, tuple[int, _Calls]] = weakref.WeakKeyDictionary()


def map_calls(module: Module, site: Site) -> list[tuple[Module, ast.Call]]:
    """Returns the calls of a map, each once."""
    project = module.project
    count, found = _KNOWN.get(project, (-1, {}))
    if count != len(project.modules):
        found = _all_calls(project)
        _KNOWN[project] = (len(project.modules), found)
    return list(dict.fromkeys(each for place in site.places for each in found.get(place, ())))


def _all_calls(project: Project) -> _Calls:
    found: _Calls = {}
    for module in project.modules.values():
        for call, callee in module.facts.callees.items() if module is not None else ():
            assert module is not None
            for fact in callee if isinstance(call, ast.Call) else ():
                if isinstance(fact, Mapped):
                    found.setdefault(fact.site, []).append((module, call))  # type: ignore[arg-type]
    return found
