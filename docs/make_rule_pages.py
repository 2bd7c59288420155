"""An mkdocs hook: the page of all rules of ``pmapx check``, made from their docstrings."""

import re
from typing import Any

from mkdocs.structure.files import File, Files

from pmapx.migrate.rules import all_rules


def on_files(files: Files, config: Any) -> Files:
    """Adds rules.md to the pages to build."""
    files.append(File.generated(config, "rules.md", content=page()))
    return files


def page() -> str:
    """Writes a table of all rules, then one section a rule."""
    table = ["| code | rule |", "|---|---|"]
    sections = []
    for code, rule in all_rules().items():
        table.append(f"| [{code}](#{code.lower()}) | {rule.summary()} |")
        title, _, text = rule.page().partition("\n")
        # The heading's anchor is the code alone: rules/#pmx501.
        sections.append(f"## {title} {{ #{code.lower()} }}\n\n{text.strip()}\n")
    head = (
        "# Rules\n\n"
        "What [`pmapx check`](check.md) looks for. `pmapx explain CODE` prints the same text. "
        "*Guide* names the section of JAX's guide to the new pmap.\n"
    )
    whole = "\n".join([head, *table, "", *sections])
    # Docstrings write code between two backticks, Markdown between one.
    return re.sub("(?<!`)``(?!`)", "`", whole)
