"""The name of the mesh axis that a file's maps share, for what is put on devices for them.

An array on a mesh with another name is another type for ``jax.jit``: a step would be compiled for
the state that it is given first, and again for the state that it returns.
"""

from __future__ import annotations

import ast
import collections
import copy
import json

from pmapx._src.analysis.module import Module
from pmapx._src.analysis.values import constant

UNNAMED = "devices"
_DEFAULT = f'axis_name="{UNNAMED}"'


def of_maps(module: Module) -> str:
    """Returns the name that most maps of a file have; of all files if it makes none itself."""
    made = _given([module])
    if not made:
        made = _given([other for other in module.project.modules.values() if other is not None])
    names = collections.Counter(name for name in made if isinstance(name, str))
    return names.most_common(1)[0][0] if names else UNNAMED


def _given(modules: list[Module]) -> list[object]:
    """Returns the names that maps are given: None without one, ``...`` when it is not known."""
    return [
        constant(making.options["axis_name"]) if "axis_name" in making.options else None
        for module in modules
        for making in module.facts.makings.values()
    ]


def with_name(text: str, name: str) -> str:
    """Returns the text of an emitted function with ``name`` as its default for ``axis_name``.

    >>> with_name('def put(x, axis_name="devices"): ...', "batch")
    'def put(x, axis_name="batch"): ...'
    """
    return text.replace(_DEFAULT, f"axis_name={json.dumps(name, ensure_ascii=False)}")


def without_name(function: ast.AST) -> str:
    """Returns a function as text that is the same for any such default."""
    plain = copy.deepcopy(function)
    if isinstance(plain, ast.FunctionDef) and plain.args.defaults:
        last = plain.args.args[-1:]
        if last and last[0].arg == "axis_name":
            plain.args.defaults[-1] = ast.Constant(UNNAMED)
    return ast.dump(plain)
