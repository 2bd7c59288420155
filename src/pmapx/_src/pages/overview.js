"use strict";

// What the report of pmapx migrate begins with: totals, and the reasons, each with how many.
const overview = (() => {
  const { element, foreign } = shell;

  function table(caption, head, rows, run, number) {
    return element(
      "section",
      { class: "card block" },
      element("h2", {}, caption),
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, head.map((name, n) => element("th", { class: n ? "" : "number" }, name)))),
        element(
          "tbody",
          {},
          rows.map(([first, second, chosen]) =>
            element(
              "tr",
              {},
              element("td", { class: "number" }, typeof first === "number" ? number(first) : first),
              element("td", {}, run ? element("button", { type: "button", class: "link", run: () => run(chosen) }, second) : second),
            ),
          ),
        ),
      ),
    );
  }

  // What the change costs: lines, and those of functions that were not there before.
  function linesIn({ lines: [added, removed, inFunctions, functions] }, plural, number) {
    if (!added && !removed) return "No line changes.";
    const helpers = functions ? `, ${number(inFunctions)} of them in ${plural(functions, "new function")}` : "";
    return `${plural(added, "line")} added${helpers}; ${number(removed)} removed.`;
  }

  function make({ report, sites, folder, totals, NAMES, STATES, AXES, plural, number, counted }, run) {
    const perFile = counted(sites.map((site) => site.file));
    const perRule = counted(sites.map((site) => site.rule));
    const ordered = (counts) => [...counts].sort((one, other) => other[1] - one[1]);
    const problems = (state) => ordered(counted(sites.filter((site) => site.state === state).map((site) => site.note)));
    const states = Object.keys(STATES).filter((state) => totals.has(state));
    const share = states.map((state) => {
      const part = element("span", { class: `part ${state}`, title: `${number(totals.get(state))} ${NAMES[state] ?? state}` });
      part.style.flexGrow = totals.get(state);
      return part;
    });
    const reasons = (title, state) => {
      const rows = problems(state).map(([why, times]) => [times, foreign(why), why]);
      return rows.length > 0 && table(title, ["sites", "reason"], rows, run && ((why) => run(why, [state])), number);
    };
    const rules = ordered(perRule).map(([rule, times]) => [
      times,
      [foreign(rule, "code"), " ", shell.prose(report.rules[rule])],
      rule,
    ]);
    const kinds = Object.keys(AXES).filter((name) => totals.has(name));
    const stays = ordered(counted(sites.flatMap((site) => site.stacked.map(([, why]) => why))));
    const legend = (names, words) =>
      element(
        "dl",
        { class: "legend" },
        names.map((name) => element(
          "div",
          {},
          element("dt", { class: name }, number(totals.get(name)), " ", element("small", {}, `${Math.round((100 * totals.get(name)) / sites.length)} %`)),
          element("dd", {}, words[name]),
        )),
      );
    return element(
      "div",
      { class: "overview" },
      element(
        "section",
        { class: "card block" },
        element("h2", {}, plural(sites.length, "site"), ` in ${plural(perFile.size, "file")}`, folder && [" below ", foreign(folder, "code")]),
        sites.length > 0 && element("div", { class: "share", role: "img", "aria-label": states.map((s) => `${totals.get(s)} ${NAMES[s] ?? s}`).join(", ") }, share),
        legend(states, STATES),
        kinds.length > 0 && legend(kinds, AXES),
        element("p", { class: "lines" }, linesIn(report, plural, number)),
        report.renamed > 0 &&
          element("p", { class: "lines" }, `${plural(report.renamed, "name")} that JAX removed: ${report.written ? "replaced" : "to replace"}.`),
      ),
      reasons("Different", "different"),
      reasons("Left, and why", "left"),
      reasons("Unverified", "unverified"),
      stays.length > 0 &&
        table(
          "State that stays stacked, and why",
          ["values", "reason"],
          stays.map(([why, times]) => [times, foreign(why), why]),
          run && ((why) => run(why, [], ["stacked"])),
          number,
        ),
      report.unread.length > 0 &&
        table("Not read", ["", "file"], report.unread.map(([path, why]) => ["", [foreign(path, "code"), ": ", foreign(why)]])),
      rules.length > 0 && table("By rule", ["sites", "rule"], rules, run && ((rule) => run(rule, [])), number),
    );
  }

  return { make };
})();
