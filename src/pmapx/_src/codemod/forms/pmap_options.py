"""``jax.pmap`` becomes ``map_rows``, a function of the file with the same options.

For what is kept, passed on, has options that cannot be seen at the site, or comments inside.
"""

from __future__ import annotations

from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor

PREFERENCE = 60


def obstacle(use: Use) -> str:
    return ""


def functions(use: Use) -> list[str]:
    return ["map_rows"]


def write(use: Use, editor: Editor) -> None:
    editor.replace(use.site.name, "map_rows")
