"""An mkdocs hook: the page of all findings of ``pmapx audit``, made from their docstrings."""

import re
from typing import Any

from mkdocs.structure.files import File, Files

from pmapx.audit.findings import all_findings


def on_files(files: Files, config: Any) -> Files:
    """Adds findings.md to the pages to build."""
    files.append(File.generated(config, "findings.md", content=page()))
    return files


def page() -> str:
    """Writes a table of all findings, then one section each."""
    table = ["| code | finding |", "|---|---|"]
    sections = []
    for code, finding in all_findings().items():
        table.append(f"| [{code}](#{code.lower()}) | {finding.summary()} |")
        title, _, text = finding.page().partition("\n")
        # The heading's anchor is the code alone: findings/#pmx601.
        sections.append(f"## {title} {{ #{code.lower()} }}\n\n{text.strip()}\n")
    head = (
        "# Findings\n\n"
        "What [`pmapx audit`](audit.md) points out. `pmapx explain CODE` prints the same text.\n"
    )
    whole = "\n".join([head, *table, "", *sections])
    # Docstrings write code between two backticks, Markdown between one.
    return re.sub("(?<!`)``(?!`)", "`", whole)
