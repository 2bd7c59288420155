"use strict";

// The report of pmapx audit: findings, bytes by function, and each function.
(() => {
  const { element, foreign } = shell;
  const { bytes, seconds } = pictures;
  const audit = shell.data("audit");
  const functions = audit.functions;
  const SHOWN_LEAVES = 12;
  const number = (count) => count.toLocaleString("en");
  const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
  const section = (title, words, ...children) =>
    element("section", { class: "card" }, element("h2", {}, title), words ? element("p", { class: "words" }, words) : null, children);

  const kinds = [...new Set(functions.map((made) => `${made.devices} × ${made.deviceKind}`))];
  const where = audit.topology ? `${audit.topology} (${kinds.join(", ")})` : kinds.join(", ");
  const words = [
    audit.command ? foreign(audit.command, "code") : null,
    audit.command ? (audit.status === 0 ? " · " : ` ended with ${audit.status} · `) : null,
    [plural(functions.length, "mapped function"), where, plural(audit.findings.length, "finding"), `JAX ${audit.jax_version}`]
      .filter(Boolean)
      .join(" · "),
  ];
  shell.header("pmapx audit", words);

  const cards = functions.map(card);
  const goTo = (at) => {
    cards[at].scrollIntoView({ behavior: "smooth", block: "start" });
    cards[at].focus({ preventScroll: true });
  };
  shell.main.append(
    element(
      "div",
      { class: "page" },
      audit.compared ? compared() : null,
      findings(),
      functions.length ? overview() : nothing(),
      cards,
      audit.shardReads.length ? shardReads() : null,
      audit.skipped.length ? section("Not audited", null, element("ul", {}, audit.skipped.map((line) => element("li", {}, foreign(line))))) : null,
      audit.assumptions.length ? section("Assumptions of the time estimates", null, element("ul", {}, audit.assumptions.map((line) => element("li", {}, line)))) : null,
    ),
  );

  function nothing() {
    return section("No pmapped functions", "No pmap and no jit of a shard_map was called with arrays.");
  }

  function findings() {
    if (!audit.findings.length) {
      return functions.length ? section("Findings", "No findings.") : null;
    }
    const rows = audit.findings.map((remark) => {
      const [title, ...rest] = (audit.pages[remark.code] ?? remark.code).split("\n");
      const page = element(
        "div",
        { class: "explained" },
        element("p", {}, element("b", {}, shell.prose(title))),
        rest.join("\n").trim().split(/\n\s*\n/).map((part) => element("p", {}, shell.prose(part))),
      );
      return element(
        "details",
        { class: "finding" },
        element(
          "summary",
          {},
          element("span", { class: "code-chip" }, remark.code),
          element(
            "span",
            { class: "said" },
            remark.function ? [foreign(remark.function, "b"), ": "] : null,
            foreign(remark.message),
            element("span", { class: "fix" }, "Fix: ", foreign(remark.fix)),
          ),
          remark.place ? foreign(remark.place, "code", { class: "place" }) : null,
        ),
        page,
      );
    });
    return section("Findings", null, rows);
  }

  function overview() {
    const legend = [...pictures.MEMORY.map(([key, name]) => [key, name]), ["sent", "sent per device and call"]];
    return section(
      "Bytes by function",
      "Above: memory per device. Below: bytes sent per device and call.",
      element("p", { class: "legend" }, legend.map(([key, name]) => element("span", {}, swatch(`memory ${key}`), name))),
      element("div", { class: "wide" }, pictures.byFunction(functions, goTo)),
    );
  }

  function swatch(name) {
    return pictures.svg("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" }, pictures.svg("rect", { width: 12, height: 12, rx: 3, class: name }));
  }

  function card(made, at) {
    const mesh = Object.entries(made.axisSizes).map(([name, size]) => `${name}=${number(size)}`).join(", ");
    const box = element(
      "section",
      { class: "card function", id: `function-${at}`, tabindex: "-1" },
      element(
        "header",
        {},
        element("h2", {}, foreign(made.name, "span")),
        foreign(made.place, "code", { class: "place" }),
        made.mappedAt ? element("span", { class: "place" }, "mapped at ", foreign(made.mappedAt, "code")) : null,
        made.variant ? element("span", { class: "place" }, made.variant) : null,
        element("p", { class: "words" }, `${made.kind} over `, foreign(mesh || "no mesh"), ` · ${made.deviceKind} · ${historyWords(made.history)}`),
      ),
      notes(made),
      leaves("Arguments", made.arguments, made),
      leaves("Outputs", made.outputs, made),
      exchanges(made, at),
      memory(made),
      scaling(made),
      whatIf(made),
    );
    return box;
  }

  function historyWords(history) {
    if (!history.calls && !history.compiles) return "not called before the audit";
    const said = [plural(history.calls, "call")];
    if (history.traces !== null) said.push(plural(history.traces, "trace"));
    said.push(plural(history.compiles, "compile"));
    return said.join(", ");
  }

  function notes(made) {
    const lines = [
      ...made.history.reasons.slice(1).map((reason) => ["compiled again", reason]),
      ...made.history.moved.map((move) => [`transferred ${plural(move.count, "time")}`, `${move.path}: ${move.reason}`]),
      ...made.donations.filter((each) => !each.isUsed).map((each) => ["donated, not reused", `${each.path}: ${each.reason}`]),
    ];
    if (!lines.length) return null;
    return element("ul", { class: "notes" }, lines.map(([what, why]) => element("li", {}, element("b", {}, what), " ", foreign(why))));
  }

  function leaves(title, all, made) {
    if (!all.length) return null;
    const largest = [...all].sort((one, other) => other.bytes - one.bytes).slice(0, SHOWN_LEAVES);
    const body = element("tbody", {});
    const draw = (shown) =>
      body.replaceChildren(
        ...shown.map((leaf) =>
          element(
            "tr",
            {},
            element("td", {}, foreign(leaf.path, "code")),
            element("td", {}, foreign(leaf.type, "code"), " ", foreign(leaf.spec, "code", { class: "spec" })),
            element("td", {}, pictures.holdings(leaf, made.devices)),
            element("td", { class: "number" }, bytes(leaf.bytes)),
            element(
              "td",
              {},
              element("span", { class: `badge ${leaf.state}` }, { stacked: "equal shards", replicated: "replicated", varies: "varies", unknown: leaf.across }[leaf.state]),
              " ",
              leaf.copies ? `${bytes(leaf.copies)} of copies` : leaf.state === "varies" && leaf.across !== "varies" ? foreign(leaf.across.slice(7)) : null,
              leaf.moved ? element("span", { class: "moved" }, "transferred: ", foreign(leaf.moved)) : null,
            ),
          ),
        ),
      );
    draw(all.filter((leaf) => largest.includes(leaf)));
    const more = element("button", { type: "button", class: "plain", run: () => (draw(all), more.remove()) }, `Show all ${number(all.length)}`);
    return [
      element("h3", {}, title),
      element(
        "div",
        { class: "wide" },
        element(
          "table",
          { class: "leaves" },
          element("thead", {}, element("tr", {}, ["array", "type and spec", "which device holds which shard", "per device", "across devices"].map((name) => element("th", name === "per device" ? { class: "number" } : {}, name)))),
          body,
        ),
      ),
      all.length > SHOWN_LEAVES ? more : null,
    ];
  }

  function exchanges(made, at) {
    if (!made.exchanges.length) return [element("h3", {}, "Collectives"), element("p", { class: "words" }, "None: there is no communication between devices.")];
    const crosses = made.between > 0;
    const rows = made.exchanges.map((exchange, index) =>
      element(
        "tr",
        { id: `exchange-${at}-${index}`, tabindex: "-1" },
        element("td", {}, swatch(`exchange ${exchange.isWritten ? exchange.kind : "added"}`), " ", exchange.kind, exchange.isWritten ? null : element("span", { class: "badge added" }, "added by XLA")),
        element("td", {}, foreign(exchange.along)),
        element("td", { class: "number" }, bytes(exchange.payload)),
        element("td", { class: "number" }, exchange.times === null ? "?" : number(exchange.times)),
        element("td", { class: "number" }, bytes(exchange.sent)),
        crosses ? element("td", { class: "number" }, bytes(exchange.between)) : null,
        element("td", { class: "number" }, seconds(exchange.seconds)),
        element("td", {}, foreign(exchange.place, "code"), exchange.operation ? [" ", foreign(exchange.operation, "code", { class: "spec" })] : null),
      ),
    );
    const show = (index) => {
      rows.forEach((row) => row.classList.remove("shown"));
      rows[index].classList.add("shown");
      rows[index].scrollIntoView({ behavior: "smooth", block: "nearest" });
      rows[index].focus({ preventScroll: true });
    };
    const heads = [["collective"], ["axis"], ["bytes", "number"], ["times", "number"], ["sent per device", "number"], ...(crosses ? [["to other slices", "number"]] : []), ["time", "number"], ["from"]];
    return [
      element("h3", {}, "Collectives of a call"),
      element("div", { class: "wide" }, pictures.timeline(made, show)),
      element("div", { class: "wide" }, element("table", { class: "exchanges" }, element("thead", {}, element("tr", {}, heads.map(([name, kind]) => element("th", kind ? { class: kind } : {}, name)))), element("tbody", {}, rows))),
    ];
  }

  function scaling(made) {
    if (!made.scaling) return null;
    const points = made.scaling.points;
    const crosses = points.some((point) => point.between > 0);
    const cells = (point) => [
      number(point.devices), point.topology, number(point.collectives), bytes(point.sent), ...(crosses ? [bytes(point.between)] : []),
      bytes(point.memory), bytes(point.temporaries), `${point.compileSeconds.toFixed(1)} s`,
    ];
    const heads = ["devices", "topology", "collectives", "sent", ...(crosses ? ["to other slices"] : []), "memory", "temporaries", "compile"];
    const kind = (index) => (index === 1 ? {} : { class: "number" });
    const said = made.scaling.growing.length
      ? element("ul", { class: "growing" }, made.scaling.growing.map((line) => element("li", {}, foreign(line))))
      : element("p", { class: "words" }, "Neither communication nor memory per device grows with the number of devices.");
    return [
      element("h3", {}, "Per device, on more devices"),
      element(
        "div",
        { class: "wide" },
        element(
          "table",
          { class: "scaling" },
          element("thead", {}, element("tr", {}, heads.map((name, index) => element("th", kind(index), name)))),
          element("tbody", {}, points.map((point) => element("tr", {}, cells(point).map((cell, index) => element("td", kind(index), cell))))),
        ),
      ),
      made.scaling.growing.length ? element("p", { class: "words" }, "Grows with the number of devices:") : null,
      said,
    ];
  }

  function whatIf(made) {
    if (!made.whatIf) return null;
    const { reason, table, notes } = made.whatIf;
    const title = element("h3", {}, "With parameters and optimizer state sharded (FSDP)");
    if (reason) return [title, element("p", { class: "words" }, foreign(reason))];
    const line = (kind) => (row) => element("tr", {}, row.map((cell, index) => element(kind, index ? { class: "number" } : {}, foreign(cell))));
    return [
      title,
      element("div", { class: "wide" }, element("table", { class: "scaling" }, element("thead", {}, table.slice(0, 1).map(line("th"))), element("tbody", {}, table.slice(1).map(line("td"))))),
      element("ul", { class: "notes" }, notes.map((note) => element("li", {}, foreign(note)))),
    ];
  }

  function memory(made) {
    if (!made.memory) return [element("h3", {}, "Memory per device"), element("p", { class: "words" }, "Not reported by this backend.")];
    const parts = pictures.memoryParts(made.memory);
    const said = pictures.MEMORY.map(([key, name]) => element("span", {}, swatch(`memory ${key}`), `${name} ${bytes(parts[key])}`));
    return [
      element("h3", {}, `Memory per device: ${bytes(made.memory.total)}`),
      element("p", { class: "legend" }, said, made.memory.aliases ? element("span", {}, `${bytes(made.memory.aliases)} of outputs reuse donated arguments`) : null),
      made.reused ? element("p", { class: "words" }, "Donated and reused: ", foreign(made.reused)) : null,
    ];
  }

  function compared() {
    const { rows, tolerance } = audit.compared;
    const worse = rows.filter((row) => row.isWorse).length;
    const said = rows.length ? `${plural(worse, "figure")} worse than the baseline by more than ${tolerance}.` : "The same as the baseline.";
    if (!rows.length) return section("Compared with the baseline", said);
    const lines = rows.map((row) =>
      element(
        "tr",
        {},
        row.cells.map((cell, at) => element("td", at > 1 ? { class: "number" } : {}, foreign(cell))),
        element("td", {}, row.isWorse ? element("b", {}, "worse") : null, row.place ? [" ", foreign(row.place, "code")] : null, row.cause ? [" ", foreign(row.cause)] : null),
      ),
    );
    const heads = [["function"], ["figure"], ["baseline", "number"], ["now", "number"], ["change", "number"], [""]];
    return section(
      "Compared with the baseline",
      said,
      element("div", { class: "wide" }, element("table", {}, element("thead", {}, element("tr", {}, heads.map(([name, kind]) => element("th", kind ? { class: kind } : {}, name)))), element("tbody", {}, lines))),
    );
  }

  function shardReads() {
    const rows = audit.shardReads.map((read) =>
      element(
        "tr",
        {},
        element("td", {}, foreign(read.place, "code")),
        element("td", {}, foreign(`[${read.index}]`, "code")),
        element("td", { class: "number" }, number(read.count)),
        element("td", {}, foreign(read.type, "code")),
        element("td", { class: "number" }, bytes(read.bytes)),
      ),
    );
    const heads = [["line"], ["index"], ["times", "number"], ["of"], ["JAX sends", "number"]];
    return section(
      "Arrays indexed along their sharded axis",
      "In JAX, each of these is a collective; pmapx.unreplicate reads the shard from its device.",
      element("div", { class: "wide" }, element("table", {}, element("thead", {}, element("tr", {}, heads.map(([name, kind]) => element("th", kind ? { class: kind } : {}, name)))), element("tbody", {}, rows))),
    );
  }

  let current = -1;
  const step = (by) => {
    if (!cards.length) return;
    current = Math.max(0, Math.min(cards.length - 1, current + by));
    goTo(current);
  };
  shell.keys([
    { keys: ["j", "ArrowRight"], does: "next function", run: () => step(1) },
    { keys: ["k", "ArrowLeft"], does: "function before", run: () => step(-1) },
    { keys: ["e"], does: "explain all findings, or none", run: explainAll },
  ]);

  function explainAll() {
    const all = [...document.querySelectorAll("details.finding")];
    const open = !all.every((each) => each.open);
    for (const each of all) each.open = open;
  }
})();
