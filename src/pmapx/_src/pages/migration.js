"use strict";

// The report of pmapx migrate: a list of sites, and the file of the one that is looked at.
(() => {
  const { element, foreign } = shell;
  const report = shell.data("report");
  // Nothing is rewritten before it is written.
  const REWRITTEN = report.written ? "rewritten" : "to rewrite";
  const NAMES = { rewritten: REWRITTEN };
  const STATES = {
    rewritten: REWRITTEN,
    verified: "verified: the same results before and after",
    unverified: `${REWRITTEN}, but not reached by the command`,
    different: `${REWRITTEN}, but the results differ`,
    left: "left unchanged",
  };
  const AXES = {
    replicated: "have replicated state now",
    stacked: "have values that stay stacked, with a leading device axis",
  };
  // The folder that all files have in common is said once.
  const folder = report.files.reduce((common, path) => {
    while (!path.startsWith(common)) common = common.slice(0, common.lastIndexOf("/", common.length - 2) + 1);
    return common;
  }, (report.files[0] ?? "").slice(0, (report.files[0] ?? "").lastIndexOf("/") + 1));
  const paths = report.files.map((path) => path.slice(folder.length));
  const sites = report.sites.map(([file, line, column, text, what, rule, state, note, replicated, stacked, costs], index) => {
    const path = paths[file];
    // What the replicated style made of its state.
    const axes = [replicated.length && "replicated", stacked.length && "stacked"].filter(Boolean);
    const searched = [`${path}:${line}`, text, what, rule, NAMES[state] ?? state, note, axes, replicated, stacked].join(" ").toLowerCase();
    return { file, path, line, column, text, what, rule, state, note, replicated, stacked, costs, axes, index, searched };
  });
  const number = (count) => count.toLocaleString("en");
  const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
  const counted = (items) => {
    const counts = new Map();
    for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);
    return counts;
  };
  const totalled = (run) => overview.make({ report, sites, folder, totals, NAMES, STATES, AXES, plural, number, counted }, run);
  const badge = (state, words = NAMES[state] ?? state) => element("span", { class: `badge ${state}` }, words);

  const totals = counted(sites.flatMap((site) => [site.state, ...site.axes]));
  const filter = { words: "", file: "", rule: "", states: new Set(), axes: new Set() };
  let visible = sites;
  let selected = null;
  let shownFile = null;
  let isUnified = shell.kept("unified") === "yes";

  // The filters.
  const search = element("input", {
    type: "search",
    id: "search",
    placeholder: "Search files, code and reasons",
    "aria-label": "Search",
    autocomplete: "off",
    spellcheck: "false",
  });
  const option = (value, words) => element("option", { value }, words);
  const perFile = counted(sites.map((site) => site.file));
  const perRule = counted(sites.map((site) => site.rule));
  const fileChoice = element(
    "select",
    { id: "file", "aria-label": "File" },
    option("", "All files"),
    [...perFile].map(([file, count]) => option(file, `${paths[file]} (${count})`)),
  );
  const ruleChoice = element(
    "select",
    { id: "rule", "aria-label": "Rule" },
    option("", "All rules"),
    Object.entries(report.rules).map(([code]) => option(code, `${code} (${perRule.get(code)})`)),
  );
  const chips = Object.entries({ ...STATES, ...AXES })
    .filter(([state]) => totals.has(state))
    .map(([state, words], n) =>
      element(
        "button",
        {
          type: "button",
          class: `chip ${state}`,
          "data-state": state,
          "aria-pressed": "false",
          title: `${words} (${n + 1})`,
          run: () => toggle(state),
        },
        element("b", {}, number(totals.get(state))),
        ` ${NAMES[state] ?? state}`,
      ),
    );
  const count = element("p", { id: "count", role: "status", "aria-live": "polite" });
  const clearing = element("button", { type: "button", class: "link", id: "clear", run: clear }, "Clear filters");

  function toggle(state) {
    const chosen = state in AXES ? filter.axes : filter.states;
    if (!chosen.delete(state)) chosen.add(state);
    apply();
  }

  function narrow(changes) {
    Object.assign(filter, changes);
    search.value = filter.words;
    fileChoice.value = filter.file;
    ruleChoice.value = filter.rule;
    apply();
  }

  function clear() {
    filter.states.clear();
    filter.axes.clear();
    narrow({ words: "", file: "", rule: "" });
  }

  function apply() {
    const words = filter.words.toLowerCase().split(/\s+/).filter(Boolean);
    visible = sites.filter(
      (site) =>
        (filter.file === "" || site.file === Number(filter.file)) &&
        (filter.rule === "" || site.rule === filter.rule) &&
        (filter.states.size === 0 || filter.states.has(site.state)) &&
        (filter.axes.size === 0 || site.axes.some((name) => filter.axes.has(name))) &&
        words.every((word) => site.searched.includes(word)),
    );
    const isAll = visible.length === sites.length;
    count.textContent = isAll ? plural(sites.length, "site") : `${number(visible.length)} of ${plural(sites.length, "site")}`;
    clearing.hidden = isAll;
    for (const chip of chips) chip.setAttribute("aria-pressed", filter.states.has(chip.dataset.state) || filter.axes.has(chip.dataset.state));
    const rows = [];
    rowOf.clear();
    let file = -1;
    for (const site of visible) {
      if (site.file !== file) rows.push({ header: (file = site.file) });
      rowOf.set(site, rows.length);
      rows.push({ site });
    }
    if (!rows.length) rows.push({ empty: true });
    list.set(rows);
    if (selected && rowOf.has(selected)) list.reveal(rowOf.get(selected), 32);
    else if (selected) select(visible[0] ?? null);
  }

  // The list.
  const rowOf = new Map();
  const HEIGHTS = { header: 32, site: 50, empty: 90 };
  const list = listing.make(
    "Sites",
    (row) => HEIGHTS[Object.keys(row)[0]],
    (row) => {
      if (row.empty) return element("div", { class: "item empty" }, "No site matches these filters.");
      if (row.header !== undefined) {
        return element("div", { class: "item header", title: report.files[row.header] }, foreign(paths[row.header]));
      }
      const { site } = row;
      return element(
        "div",
        {
          class: `item site ${site.state}`,
          role: "option",
          id: `site-${site.index}`,
          "aria-selected": site === selected ? "true" : "false",
          run: () => select(site),
        },
        element("div", { class: "first" }, element("span", { class: "at" }, site.line), foreign(site.text, "code")),
        element("div", { class: "note" }, badge(site.state), " ", site.axes.map((name) => [badge(name), " "]), foreign(site.what), site.note && [" · ", foreign(site.note)]),
      );
    },
  );

  // The right side: a file, or the overview.
  const code = element("div", { class: "diff", id: "diff" });
  const heading = element("div", { class: "heading" });
  const detail = element("section", { id: "detail", tabindex: "-1", "aria-label": "Code" });

  function select(site, isScrolled = true) {
    selected = site;
    list.paint();
    if (!site) {
      showOverview();
      return;
    }
    list.reveal(rowOf.get(site), 32);
    list.box.setAttribute("aria-activedescendant", `site-${site.index}`);
    document.body.classList.add("has-site");
    if (shownFile !== site.file) openFile(site.file);
    drawHeading(site);
    for (const note of code.querySelectorAll(".note-row")) {
      note.classList.toggle("current", note.dataset.site === String(site.index));
    }
    if (isScrolled) code.querySelector(".note-row.current")?.scrollIntoView({ block: "center" });
    history.replaceState(null, "", `#site-${site.index}`);
  }

  function notesOf(file, isRunning) {
    const notes = new Map();
    for (const site of sites) {
      if (site.file !== file) continue;
      const made = element(
        "div",
        { class: `note-row ${site.state}`, "data-site": site.index, run: isRunning && (() => select(site, false)) },
        badge(site.state),
        element("span", { class: "rule" }, `line ${site.line}`),
        foreign(site.rule, "span", { class: "rule", title: report.rules[site.rule] }),
        foreign(site.what, "b"),
        site.note && foreign(site.note),
        site.replicated.map((what) => element("div", { class: "axis replicated" }, badge("replicated"), " ", foreign(what, "code"))),
        site.stacked.map(([what, why]) =>
          element("div", { class: "axis stacked" }, badge("stacked", "stays stacked"), " ", foreign(what, "code"), " ", foreign(why)),
        ),
        site.costs.length > 0 && foreign(site.costs.join("\n"), "pre", { class: "axis" }),
      );
      notes.set(site.line, [...(notes.get(site.line) ?? []), made]);
    }
    return notes;
  }

  function openFile(file, isFolded = true) {
    shownFile = file;
    diff.show(code, shell.data(`file-${file}`), notesOf(file, true), { isFolded });
    detail.replaceChildren(heading, code);
    detail.scrollTop = 0;
  }

  function drawHeading(site) {
    const button = (words, title, run, id) => element("button", { type: "button", class: "plain", title, run, id }, words);
    const place = visible.indexOf(site);
    heading.replaceChildren(
      element("button", { type: "button", class: "plain back", title: "Overview (o)", run: () => select(null) }, "← Overview"),
      foreign(`${site.path}:${site.line}`, "code"),
      element("span", { class: "place" }, `${number(place + 1)} of ${number(visible.length)}`),
      element(
        "span",
        { class: "buttons" },
        button("↑", "Previous site (k)", () => move(-1)),
        button("↓", "Next site (j)", () => move(1)),
        button("Unfold", "Unfold the file (e)", unfold, "unfold"),
        button(isUnified ? "Split" : "Unified", "One column or two (u)", unify, "unify"),
      ),
    );
  }

  function showOverview() {
    shownFile = null;
    document.body.classList.remove("has-site");
    list.box.removeAttribute("aria-activedescendant");
    detail.replaceChildren(totalled((words, states, axes = []) => {
      filter.states = new Set(states);
      filter.axes = new Set(axes);
      narrow({ words, file: "", rule: "" });
    }));
    detail.scrollTop = 0;
    history.replaceState(null, "", " ");
  }

  // What the keys and buttons do.
  function move(step) {
    if (!visible.length) return;
    const now = selected ? visible.indexOf(selected) : step > 0 ? -1 : visible.length;
    select(visible[Math.min(visible.length - 1, Math.max(0, now + step))]);
  }

  function moveFile(step) {
    if (!selected) return move(step);
    const files = [...new Set(visible.map((site) => site.file))];
    const next = files[files.indexOf(selected.file) + step];
    if (next !== undefined) select(visible.find((site) => site.file === next));
  }

  function unfold() {
    if (!selected) return;
    openFile(selected.file, false);
    select(selected);
  }

  function unify() {
    isUnified = !isUnified;
    shell.kept("unified", isUnified ? "yes" : "no");
    code.classList.toggle("unified", isUnified || narrowScreen.matches);
    if (selected) drawHeading(selected);
  }

  const narrowScreen = matchMedia("(max-width: 900px)");
  const fitScreen = () => code.classList.toggle("unified", isUnified || narrowScreen.matches);
  narrowScreen.addEventListener("change", fitScreen);
  fitScreen();

  shell.keys([
    { keys: ["j", "ArrowDown"], does: "next site", run: () => move(1) },
    { keys: ["k", "ArrowUp"], does: "previous site", run: () => move(-1) },
    { keys: ["n", "J"], does: "next file", run: () => moveFile(1) },
    { keys: ["p", "K"], does: "previous file", run: () => moveFile(-1) },
    { keys: ["g", "Home"], does: "first site", run: () => visible.length && select(visible[0]) },
    { keys: ["G", "End"], does: "last site", run: () => visible.length && select(visible.at(-1)) },
    { keys: ["Enter"], does: "to the code of the site", run: () => (selected ? detail.focus() : move(1)) },
    { keys: ["/"], does: "search", run: () => search.select() },
    { keys: ["e"], does: "unfold the file", run: unfold },
    { keys: ["u"], does: "one column or two", run: unify },
    { keys: ["o"], does: "overview", run: () => select(null) },
    { keys: ["x"], does: "clear the filters", run: clear },
    ...chips.map((chip, n) => ({
      keys: [String(n + 1)],
      does: `only ${NAMES[chip.dataset.state] ?? chip.dataset.state}`,
      run: () => toggle(chip.dataset.state),
    })),
    {
      keys: ["Escape"],
      does: "back: from the search, the code, the site",
      inFields: true,
      run: () => {
        const active = document.activeElement;
        if (active === search || active === detail) list.box.focus();
        else if (selected) select(null);
        else clear();
      },
    },
  ]);
  search.addEventListener("input", () => narrow({ words: search.value }));
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    list.box.focus();
    if (visible.length) select(visible[0]);
  });
  fileChoice.addEventListener("change", () => narrow({ file: fileChoice.value }));
  ruleChoice.addEventListener("change", () => narrow({ rule: ruleChoice.value }));

  // Paper has no folds to open: the totals, then every file that the filters let through.
  const paper = element("div", { id: "paper" });
  window.addEventListener("beforeprint", () => {
    const files = [...new Set(visible.map((site) => site.file))];
    paper.replaceChildren(
      totalled(null),
      ...files.map((file) => {
        const box = element("div", { class: "diff" });
        diff.show(box, shell.data(`file-${file}`), notesOf(file, false), { hasFolds: false });
        return element("section", { class: "sheet" }, element("h2", {}, foreign(paths[file])), box);
      }),
    );
  });
  window.addEventListener("afterprint", () => paper.replaceChildren());

  const done = sites.filter((site) => site.state !== "left").length;
  const words = `${number(done)} of ${plural(sites.length, "use")} ${report.written ? "rewritten" : "to rewrite"} in ${plural(report.read, "file")}`;
  shell.header("pmapx migrate", words + (report.written || !done ? "" : "; nothing was written"), element("div", { class: "chips" }, chips));
  shell.main.append(
    element(
      "nav",
      { id: "sites", "aria-label": "Sites" },
      element("div", { class: "filters" }, search, element("div", { class: "pair" }, fileChoice, ruleChoice), element("div", { class: "counted" }, count, clearing)),
      list.box,
    ),
    detail,
  );
  document.body.append(paper);
  apply();
  const asked = /^#site-(\d+)$/.exec(location.hash);
  select((asked && sites[Number(asked[1])]) || sites[0] || null);
})();
