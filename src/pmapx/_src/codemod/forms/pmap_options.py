"""``jax.pmap`` becomes ``map_over_devices``, a function of the file with the same options.

For what is kept, passed on, nested, or has options that cannot be read at the site.
"""

from __future__ import annotations

from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 30


def obstacle(use: Use) -> str:
    return ""


def functions(use: Use) -> list[str]:
    return ["map_over_devices"]


def write(use: Use, editor: Editor) -> None:
    editor.replace(use.site.name, "map_over_devices")
