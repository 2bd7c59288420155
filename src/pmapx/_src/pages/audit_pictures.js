"use strict";

// The pictures of an audit, as SVG: who holds what, collectives in time, bytes by function.
const pictures = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  // Rows of parts beyond these are left out, but for the last.
  const MOST_LINES = 6;

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (/^on|^style$|href$/i.test(name)) throw new Error(`no attribute ${name} is set on this page`);
      if (name === "run") made.addEventListener("click", value);
      else made.setAttribute(name, value);
    }
    shell.append(made, children);
    return made;
  }

  function bytes(count) {
    let size = count;
    let unit = "B";
    for (unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
      if (Math.abs(size) < 1024 || unit === "TiB") break;
      size /= 1024;
    }
    if (unit === "B") return `${count} B`;
    return `${size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${unit}`;
  }

  function seconds(time) {
    if (time === null || time === undefined) return "–";
    for (const [factor, unit] of [[1e9, "ns"], [1e6, "µs"], [1e3, "ms"]]) {
      const value = time * factor;
      if (value < 1000) return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
    }
    return `${time.toFixed(2)} s`;
  }

  // 0, 1, 2, 5 becomes "0–2, 5".
  function ranges(numbers) {
    const found = [];
    for (const number of numbers) {
      const last = found.at(-1);
      if (last && last[1] === number - 1) last[1] = number;
      else found.push([number, number]);
    }
    const words = found.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`));
    return words.length > 3 ? `${words.slice(0, 2).join(", ")}, …` : words.join(", ");
  }

  // The numbers from 0 up to `count`, but for a gap before the last where there is no room for all.
  function withGap(count, room) {
    if (count <= room) return [...Array(count).keys()];
    return [...Array(Math.max(1, room - 2)).keys(), null, count - 1];
  }

  // Which parts of an array lie where: equal parts have one colour, others one each. One split
  // dimension is drawn across; of two, the first goes down as in a matrix.
  function holdings(leaf, deviceCount) {
    if (!leaf.parts) return null;
    const { rows, columns, holders } = leaf.parts;
    const isMatrix = columns > 1;
    const [across, down] = isMatrix ? [columns, rows] : [rows, 1];
    const isWhole = across * down === 1;
    const words = (part) => {
      if (isWhole) return deviceCount === 1 ? "0" : `all ${deviceCount}`;
      return holders[part]?.length ? ranges(holders[part]) : `${part}`;
    };
    const longest = Math.max(...withGap(rows * columns, 64).map((part) => (part === null ? 1 : words(part).length)));
    const [room, height] = [232, 20];
    const least = 6.4 * Math.min(longest, 8) + 10;
    const shown = withGap(across, Math.max(3, Math.floor(room / least)));
    const wide = Math.floor(Math.min(isWhole ? room : 56, room / shown.length));
    const lines = withGap(down, MOST_LINES);
    const cells = lines.flatMap((line, y) =>
      shown.map((column, x) => {
        if (line === null || column === null) {
          return svg("text", { x: (x + 0.5) * wide, y: (y + 0.5) * height + 4, class: "mark" }, "…");
        }
        const part = isMatrix ? line * columns + column : column;
        const held = isWhole ? "replicated on every device" : `shard ${part} on device ${words(part)}`;
        return svg(
          "g",
          {},
          svg("title", {}, leaf.state === "stacked" ? `${held}, equal to the others` : held),
          svg("rect", {
            x: x * wide + 0.5, y: y * height + 0.5, width: wide - 2, height: height - 2, rx: 3,
            class: leaf.state === "varies" ? `hue h${part % 8}` : `hue ${leaf.state}`,
          }),
          svg("text", { x: (x + 0.5) * wide - 0.5, y: y * height + 14, class: "part" }, words(part)),
        );
      }),
    );
    const [width, tall] = [wide * shown.length, height * lines.length];
    const name = `${leaf.path}: ${leaf.across}, in ${rows * columns} part${rows * columns === 1 ? "" : "s"}`;
    return svg("svg", { class: "holdings", width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": name }, cells);
  }

  // Collectives one after the other: as wide as their time, or as their bytes where none is known.
  function timeline(made, show) {
    const exchanges = made.exchanges;
    const isTimed = made.seconds !== null;
    const size = (exchange) => (isTimed ? exchange.seconds : exchange.sent);
    const total = exchanges.reduce((sum, exchange) => sum + size(exchange), 0) || 1;
    const lanes = [...new Set(exchanges.map((e) => e.along))];
    const left = 14 + 7.2 * Math.max(4, ...lanes.map((lane) => Math.min(lane.length, 18)));
    const [width, lane, top] = [1000, 34, 8];
    const room = width - left - 12;
    const least = Math.min(3, room / (2 * exchanges.length));
    const stretch = Math.max(0, room - least * exchanges.length);
    const height = top + lane * lanes.length + 26;
    let x = left;
    const blocks = exchanges.map((exchange, index) => {
      const wide = least + (stretch * size(exchange)) / total;
      const y = top + lane * lanes.indexOf(exchange.along);
      const kind = exchange.isWritten ? exchange.kind : "added";
      const often = exchange.times === null ? " ×?" : exchange.times > 1 ? ` ×${exchange.times}` : "";
      const cost = isTimed ? seconds(exchange.seconds) : bytes(exchange.sent);
      const full = `${exchange.kind}${often}  ${cost}`;
      const fits = (words) => words.length * 6.6 + 10 < wide;
      const label = fits(full) ? full : fits(exchange.kind + often) ? exchange.kind + often : fits(cost) ? cost : "";
      const block = svg(
        "g",
        { class: "block", run: () => show(index), tabindex: "0", role: "button", "aria-label": `${full}, ${exchange.place}` },
        svg("title", {}, `${full}\n${bytes(exchange.payload)} at ${exchange.place}${exchange.operation ? ` (${exchange.operation})` : ""}`),
        svg("rect", { x: x + 0.5, y: y + 3, width: Math.max(1, wide - 1), height: lane - 8, rx: Math.min(4, wide / 3), class: `exchange ${kind}` }),
        label ? svg("text", { x: x + wide / 2, y: y + lane / 2 + 3, class: "label" }, label) : null,
      );
      block.addEventListener("keydown", (event) => event.key === "Enter" && show(index));
      x += wide;
      return block;
    });
    const end = isTimed ? `${seconds(made.seconds)} of collectives per call, one after the other (an estimate)` : `${bytes(made.sent)} sent per device and call; widths are bytes, no time is estimated`;
    const base = top + lane * lanes.length;
    return svg(
      "svg",
      { class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${exchanges.length} collectives, ${end}` },
      lanes.map((name, at) => [
        svg("text", { x: left - 8, y: top + lane * at + lane / 2 + 3, class: "lane" }, name.length > 18 ? `${name.slice(0, 17)}…` : name),
        svg("line", { x1: left, x2: width - 12, y1: top + lane * (at + 1) - 0.5, y2: top + lane * (at + 1) - 0.5, class: "rule" }),
      ]),
      blocks,
      svg("text", { x: left, y: base + 17, class: "axis" }, "start of a call"),
      svg("text", { x: width - 12, y: base + 17, class: "axis end" }, end),
    );
  }

  const MEMORY = [["arguments", "arguments"], ["outputs", "new outputs"], ["temporaries", "temporaries"]];

  // The outputs that take the place of donated arguments need no room of their own.
  function memoryParts(memory) {
    return { arguments: memory.arguments, outputs: Math.max(0, memory.outputs - memory.aliases), temporaries: memory.temporaries };
  }

  // Memory and traffic of every function, to one scale each.
  function byFunction(functions, show) {
    const [width, line, left] = [1000, 54, 190];
    const room = width - left - 100;
    const most = Math.max(1, ...functions.map((made) => made.memory?.total ?? 0));
    const mostSent = Math.max(1, ...functions.map((made) => made.sent));
    const height = line * functions.length + 4;
    const rows = functions.map((made, at) => {
      const y = at * line;
      const parts = made.memory ? memoryParts(made.memory) : {};
      let x = left;
      const bars = MEMORY.map(([key, name]) => {
        const wide = (room * (parts[key] ?? 0)) / most;
        const bar = svg("g", {}, svg("title", {}, `${name}: ${bytes(parts[key] ?? 0)} a device`), svg("rect", { x, y: y + 6, width: Math.max(0, wide), height: 18, class: `memory ${key}` }));
        x += wide;
        return bar;
      });
      const sentWide = (room * made.sent) / mostSent;
      const name = made.name.length > 22 ? `${made.name.slice(0, 21)}…` : made.name;
      const below = made.variant ?? made.place;
      return svg(
        "g",
        { class: "bar", run: () => show(at), tabindex: "0", role: "button", "aria-label": `${made.name}: go to it` },
        svg("title", {}, `${made.name} (${made.place})`),
        svg("rect", { x: 0, y, width, height: line - 2, class: "touch" }),
        svg("text", { x: left - 12, y: y + 20, class: "name" }, name),
        svg("text", { x: left - 12, y: y + 37, class: "where" }, below.length > 28 ? `…${below.slice(-27)}` : below),
        bars,
        svg("text", { x: x + 8, y: y + 19, class: "value" }, made.memory ? bytes(made.memory.total) : "unknown"),
        svg("rect", { x: left, y: y + 29, width: Math.max(made.sent ? 2 : 0, sentWide), height: 10, class: "memory sent" }),
        svg("text", { x: left + sentWide + 8, y: y + 38, class: "value" }, made.sent ? `${bytes(made.sent)} sent` : "nothing sent"),
      );
    });
    for (const row of rows) row.addEventListener("keydown", (event) => event.key === "Enter" && row.dispatchEvent(new MouseEvent("click")));
    return svg("svg", { class: "by-function", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Memory and bytes sent per device, by function" }, rows);
  }

  return Object.freeze({ bytes, byFunction, holdings, memoryParts, seconds, svg, timeline, MEMORY });
})();
