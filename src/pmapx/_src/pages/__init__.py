"""Pages that a command writes: one file of HTML, nothing loaded, and no data in it can run.

``escaping`` turns untrusted text into safe data; ``shell`` assembles a page; ``code_pages`` has the
base class of rules and findings, which have a code and a page of documentation.
``shell.css`` has the colours and ``shell.js`` what every page does: building elements from
text, the theme, the keys and the help on them. A page adds files of its own beside these.

>>> from pmapx._src.pages import shell
>>> page = shell.Page("Sizes", data={"sizes": [1, 2]}, scripts=("shell.js",))
>>> shell.render(page).startswith("<!doctype html>")
True

In the page's own script, the global ``shell`` has all that it needs::

    const sizes = shell.data("sizes");
    shell.header("Sizes", `${sizes.length} in all`);
    shell.main.append(shell.element("ol", {}, sizes.map((n) => shell.element("li", {}, n))));
    shell.keys([{ keys: ["g"], does: "go to the top", run: () => window.scrollTo(0, 0) }]);
"""
