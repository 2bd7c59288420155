"""An mkdocs hook: the page of all errors and warnings, made from their docstrings."""

import re
from typing import Any

from mkdocs.structure.files import File, Files

from pmapx import errors


def on_files(files: Files, config: Any) -> Files:
    """Adds errors.md to the pages to build."""
    files.append(File.generated(config, "errors.md", content=page()))
    return files


def page() -> str:
    """Writes one section a code: its title, what it inherits from, and its text."""
    sections = [
        "# Errors and warnings\n\n"
        "Every error and warning of pmapx carries a code that does not change, and its message "
        "names the argument, its shape, the axis and the fix. `pmapx explain CODE` prints the "
        "same text as this page. All errors derive from `pmapx.PmapxError` and from the type "
        "that JAX raises for the same mistake; warnings derive from `pmapx.PmapxWarning`.\n"
    ]
    for code in sorted(errors.CODES):
        title, _, text = errors.explain(code).partition("\n")
        bases = " or ".join(f"`{base.__name__}`" for base in errors.CODES[code].__bases__)
        # The heading's anchor is the code alone: errors/#pmx101.
        sections.append(
            f"## {title} {{ #{code.lower()} }}\n\n{text.strip()}\n\nCaught as {bases}.\n"
        )
    # Docstrings write code between two backticks, Markdown between one.
    return re.sub("(?<!`)``(?!`)", "`", "\n".join(sections))
