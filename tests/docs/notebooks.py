"""A notebook's cells, run in order as one program; run with a FILE, it renews what is stored."""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def run(path):
    """Yields each code cell with the text that running it gives: what it prints, and its value."""
    notebook = json.loads(Path(path).read_text("utf-8"))
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            yield cell, _text(f"{path}, cell {number}", "".join(cell["source"]), names)


def stored(cell):
    """Returns the text of a cell's stored outputs."""
    return "".join(
        "".join(output.get("text") or output["data"]["text/plain"]) for output in cell["outputs"]
    )


def _text(where, source, names):
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if value is not None:
                print(repr(value))
    return printed.getvalue()


def _renew(path):
    notebook = json.loads(Path(path).read_text("utf-8"))
    texts = [text for _, text in run(path)]
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(cells, texts, strict=True), start=1):
        lines = text.splitlines(keepends=True)
        shown = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        cell["outputs"], cell["execution_count"] = shown, number
    Path(path).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        _renew(path)
