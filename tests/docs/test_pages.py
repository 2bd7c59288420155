"""The documentation's examples: each page's blocks run in order, as one program."""

import doctest
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if BLOCK.search(page.read_text("utf-8"))
)


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("page", PAGES)
def test_examples_on_the_page_run_and_print_what_it_says(page):
    if page in ("README.md", "docs/migrate.md"):
        pytest.importorskip("click", reason="needs pmapx[tools]")
    if page == "docs/scaling.md" and os.environ.get("PMAPX_PUBLIC_ONLY"):
        pytest.skip("public JAX has no more CPU devices than the process was started with")
    text = (ROOT / page).read_text("utf-8")
    names = {"__name__": "page"}
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=options)
    complaints = []
    for block in BLOCK.finditer(text):
        language, source = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if language == "python":
            exec(compile("\n" * line + source, page, "exec"), names)
        else:
            test = doctest.DocTestParser().get_doctest(source, names, page, page, line)
            runner.run(test, out=complaints.append, clear_globs=False)
            names |= test.globs
    assert not complaints, "".join(complaints)


def test_the_readmes_table_is_that_of_the_measured_figures():
    checked = [sys.executable, str(ROOT / "benchmarks" / "compare.py"), "--check"]
    assert subprocess.run(checked, check=False).returncode == 0


def test_pages_with_examples_are_found():
    assert {"README.md", "docs/index.md", "docs/guide/pmap.md", "docs/check.md"} <= set(PAGES)
