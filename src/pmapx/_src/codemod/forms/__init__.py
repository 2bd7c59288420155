"""What a use of pmap can become: one module a form, each with what it needs and what it writes.

``use`` has what a form is chosen by and written from; ``mapped_function`` the function that it
maps, ``late_names`` what its text would mean later, ``shard_body`` how it takes one device's
shards, with ``python_numbers``: by ``body_edits``, in a ``lambda_around`` it or in a
``local_function``; ``top_level`` where it stands if it is made again and again. A form is a module
with

- ``PREFERENCE``, a number: of the forms that apply, the one with the smallest is taken;
- ``obstacle(use)``, which returns why the form does not apply, or nothing;
- ``functions(use)``, the emitted functions that its text calls;
- ``write(use, editor)``, which edits the file.

Such as ``inner_map`` and ``shard_map_call``; ``pmap_options`` applies to every use that no other
form takes. ``device_grid`` finds the maps in maps that are one over a mesh of two axes.
``process_calls`` has what the calls of a multi-process program become, ``host_local`` the function
that converts for all of them, and ``placing`` the calls that put arrays on devices.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Protocol

from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor


class Form(Protocol):
    """A module of this package."""

    PREFERENCE: int
    __name__: str

    def obstacle(self, use: Use) -> str: ...
    def functions(self, use: Use) -> list[str]: ...
    def write(self, use: Use, editor: Editor) -> None: ...


@functools.cache
def all_forms() -> tuple[Form, ...]:
    """Returns the forms, the preferred one first."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.ispkg
    ]
    found = [module for module in modules if hasattr(module, "PREFERENCE")]
    return tuple(sorted(found, key=lambda form: form.PREFERENCE))  # type: ignore[arg-type]


def best(use: Use) -> Form:
    """Returns the form that a use is given."""
    return next(form for form in all_forms() if not form.obstacle(use))
