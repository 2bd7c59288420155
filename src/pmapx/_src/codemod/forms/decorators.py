"""Writing a stack of decorators in the place of one; the forms that do so are beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pmapx._src.codemod.forms.use import Use
from pmapx._src.codemod.text.editor import Editor
from pmapx._src.source.rewriting.edits import between

_BEFORE = re.compile(r"\s*@[\s(]*")


def obstacle(use: Use) -> str:
    """Returns why a site cannot become several decorators."""
    if use.site.kind != "decorator":
        return "it is not a decorator"
    line = use.module.source.line(use.site.whole.line)
    if not _BEFORE.fullmatch(line[: use.site.whole.column]):
        return "its @ is on another line"
    return "" if use.has_known_arguments else "its options are not all written at the site"


def stack(use: Use, editor: Editor, texts: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Writes decorators one below another: the last has what is beside the one that was there."""
    indent = editor.indent(use.site.whole.line)
    *first, last = texts
    above = [*notes, *(f"@{text}" for text in first)]
    text = "".join(f"{each}\n{indent}" for each in above)
    # In the place of the @: what is inserted before it stays before it.
    at = (use.site.whole.line, len(indent))
    editor.edits.append(between(at, (at[0], at[1] + 1), f"{text}@"))
    editor.replace(use.site.whole, last)
