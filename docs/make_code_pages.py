"""An mkdocs hook: the pages of all codes (errors, rules, findings), made from their docstrings.

What only doctest needs, such as its marker for blank lines, is taken out of all pages.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any

from pmapx._src import errors
from pmapx._src.audit.findings import all_findings
from pmapx._src.lint.rules import all_rules

if TYPE_CHECKING:
    from mkdocs.structure.files import Files


@dataclasses.dataclass(frozen=True)
class Section:
    """What a page says of one code."""

    code: str
    summary: str
    text: str


def on_files(files: Files, config: Any) -> Files:
    """Adds errors.md, rules.md and findings.md to the pages to build."""
    from mkdocs.structure.files import File  # The tests read the pages without it.

    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Shows sessions as a terminal does."""
    return without_doctest_markers(markdown)


def without_doctest_markers(markdown: str) -> str:
    """Returns a page without what doctest alone reads.

    >>> without_doctest_markers("a\\n<BLANKLINE>\\n>>> b  # doctest: +ELLIPSIS")
    'a\\n\\n>>> b'
    """
    without_options = re.sub(r"[ ]*# doctest: .*$", "", markdown, flags=re.MULTILINE)
    return re.sub(r"^<BLANKLINE>$", "", without_options, flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """The Markdown of each page."""
    return {
        "errors.md": page(
            "# Errors and warnings",
            "Every error and warning of pmapx carries a code that does not change, and its message "
            "names the argument, its shape, the axis and the fix. `pmapx explain CODE` prints the "
            "same text as this page. All errors derive from `pmapx.PmapxError` and from the type "
            "that JAX raises for the same mistake; warnings derive from `pmapx.PmapxWarning`.",
            [error(code) for code in sorted(errors.CODES)],
        ),
        "rules.md": page(
            "# Rules",
            "What [`pmapx check`](check.md) looks for. `pmapx explain CODE` prints the same text. "
            "*Guide* names the section of JAX's guide to the new pmap.",
            [Section(code, rule.summary(), rule.page()) for code, rule in all_rules().items()],
        ),
        "findings.md": page(
            "# Findings",
            "What [`pmapx audit`](audit.md) points out. `pmapx explain CODE` prints the same text.",
            [
                Section(code, found.summary(), found.page())
                for code, found in all_findings().items()
            ],
        ),
    }


def error(code: str) -> Section:
    """What an error's docstring says, and what catches it."""
    text = errors.explain(code)
    summary = inspect.cleandoc(errors.CODES[code].__doc__ or "").partition("\n")[0]
    bases = " or ".join(f"`{base.__name__}`" for base in public_bases(errors.CODES[code]))
    return Section(code, summary, f"{text.strip()}\n\nCaught as {bases}.")


def public_bases(error: type) -> list[type]:
    """Returns the classes that an error derives from, those of private classes in their place.

    >>> [base.__name__ for base in public_bases(errors.ReshardRefused)]
    ['PmapxError', 'ValueError']
    """
    found = []
    for base in error.__bases__:
        found += public_bases(base) if base.__name__.startswith("_") else [base]
    return found


def page(title: str, introduction: str, sections: list[Section]) -> str:
    """Writes a table of all codes, then one section per code."""
    rows = [f"| [{each.code}](#{each.code.lower()}) | {each.summary} |" for each in sections]
    table = "\n".join(["| code | |", "|---|---|", *rows])
    text = "\n\n".join([title, introduction, table, *map(written, sections)]) + "\n"
    # Docstrings write code between two backticks, Markdown between one.
    return re.sub("(?<!`)``(?!`)", "`", text)


def written(section: Section) -> str:
    """A heading, whose anchor is the code alone (errors/#pmx101), and the text under it."""
    title, _, text = section.text.partition("\n")
    return f"## {title} {{ #{section.code.lower()} }}\n\n{text.strip()}"
