"""What commands print and write: ``formatting`` has numbers and tables, the rest HTML pages.

A page is a single file that loads nothing and runs no code from data. ``shell`` turns untrusted
text into safe data and assembles a page; ``code_pages`` has the base class of rules and findings,
which have a code and a page of documentation.
``shell.css`` and ``shell.js`` are shared by all pages: colors, building DOM elements from text, the
theme, keyboard shortcuts and their help. Each page adds its own files.

>>> from pmapx._src.pages import shell
>>> shell.render("Sizes", {"sizes": [1, 2]}).startswith("<!doctype html>")
True

The page's own script uses the global ``shell``::

    const sizes = shell.data("sizes");
    shell.header("Sizes", `${sizes.length} in all`);
    shell.main.append(shell.element("ol", {}, sizes.map((n) => shell.element("li", {}, n))));
    shell.keys([{ keys: ["g"], does: "go to the top", run: () => window.scrollTo(0, 0) }]);
"""
