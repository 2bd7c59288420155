"use strict";

// Two versions of a file side by side, with unchanged parts folded.
const diff = (() => {
  const { element, foreign } = shell;
  const CONTEXT = 3;
  const STEP = 20;
  // A fold that hides fewer lines than this takes more room than it saves.
  const WORTH_FOLDING = 4;
  // Longer lines are shown without colours, and not compared word by word.
  const LONGEST = 2000;

  // Rows of a file: numbers of the old and the new line from 1, 0 where there is none.
  function rowsOf(file) {
    const rows = [];
    const after = [];
    let old = 0;
    let taken = 0;
    for (const [kind, count] of file.steps) {
      for (let n = 0; n < count; n++) {
        if (kind !== "+") old++;
        if (kind !== "-") after.push(kind === "=" ? file.before[old - 1] : file.new[taken++]);
        rows.push({ kind, old: kind === "+" ? 0 : old, new: kind === "-" ? 0 : after.length });
      }
    }
    return { rows, before: file.before, after };
  }

  const TOKEN =
    /(#.*)|([rbuf]{0,2}("""|'''))|([rbuf]{0,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))|(@[\w.]+)|(\b(?:False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b)|(\b\d[\w.]*)|\w+/gi;
  const CLASSES = [, "comment", "string", , "string", "decorator", "keyword", "number"];

  // The coloured stretches of every line: [start, end, class].
  function colour(lines) {
    let open = "";
    return lines.map((line) => {
      const found = [];
      let at = 0;
      if (open) {
        const end = line.indexOf(open);
        at = end < 0 ? line.length : end + 3;
        found.push([0, at, "string"]);
        if (end < 0) return found;
        open = "";
      }
      if (line.length > LONGEST) return found;
      TOKEN.lastIndex = at;
      for (let token = TOKEN.exec(line); token; token = TOKEN.exec(line)) {
        const group = CLASSES.findIndex((name, n) => name && token[n] !== undefined);
        if (group < 0) continue;
        let end = TOKEN.lastIndex;
        if (group === 2) {
          const close = line.indexOf(token[3], end);
          if (close < 0) open = token[3];
          end = close < 0 ? line.length : close + 3;
          TOKEN.lastIndex = end;
        }
        found.push([token.index, end, CLASSES[group]]);
        if (open) break;
      }
      return found;
    });
  }

  // Which stretches of two lines differ, word by word: the longest that both have stays plain.
  function differences(before, after) {
    const split = (line) => line.match(/\w+|\s+|[^\w\s]/g) ?? [];
    const [a, b] = [split(before), split(after)];
    if (before.length + after.length > LONGEST || a.length * b.length > 40000) return [[], []];
    const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        common[i][j] =
          a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
      }
    }
    const marks = [[], []];
    const at = [0, 0];
    const mark = (side, word) => {
      const last = marks[side].at(-1);
      if (last && last[1] === at[side]) last[1] += word.length;
      else marks[side].push([at[side], at[side] + word.length]);
      at[side] += word.length;
    };
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) {
        at[0] += a[i++].length;
        at[1] += b[j++].length;
      } else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) {
        mark(0, a[i++]);
      } else {
        mark(1, b[j++]);
      }
    }
    // Where nearly all differs, marks tell nothing.
    const share = marks[0].reduce((sum, [start, end]) => sum + end - start, 0) / before.trim().length;
    if (share > 0.6) return [[], []];
    // Another indentation is seen without a mark.
    const indents = [before, after].map((line) => line.length - line.trimStart().length);
    return marks.map((ranges, side) =>
      ranges
        .map(([start, end]) => [Math.max(start, indents[side]), end])
        .filter(([start, end]) => start < end),
    );
  }

  // A line with its colors and marks, split wherever either begins or ends.
  function painted(line, colours, marks) {
    const cuts = new Set([0, line.length]);
    for (const [start, end] of [...colours, ...marks]) cuts.add(start).add(end);
    const places = [...cuts].sort((one, other) => one - other);
    const covers = ([start, end], place) => start <= place && place < end;
    return places.slice(0, -1).map((place, n) => {
      const text = line.slice(place, places[n + 1]);
      const token = colours.find((range) => covers(range, place));
      const names = [token ? `t-${token[2]}` : "", marks.some((m) => covers(m, place)) ? "mark" : ""];
      return foreign(text, "span", { class: names.join(" ").trim() });
    });
  }

  function cells(view, row) {
    const old = row.old ? view.before[row.old - 1] : "";
    const now = row.new ? view.after[row.new - 1] : "";
    const marks = row.kind === "~" ? differences(old, now) : [[], []];
    view.coloured ??= [colour(view.before), colour(view.after)];
    const side = (place, which, number, line) => [
      element("span", { class: `ln ${which}` }, number || ""),
      element(
        "span",
        { class: `code ${which}${number ? "" : " none"}` },
        number ? painted(line, view.coloured[place][number - 1], marks[place]) : null,
      ),
    ];
    const kinds = { "=": "same", "~": "changed", "-": "gone", "+": "come" };
    return element("div", { class: `row ${kinds[row.kind]}` }, side(0, "old", row.old, old), side(1, "new", row.new, now));
  }

  // Stretches of rows that are shown; all else is folded.
  function shownParts(rows, lines) {
    const wanted = new Set(lines);
    const parts = [];
    rows.forEach((row, n) => {
      if (row.kind === "=" && !wanted.has(row.old)) return;
      const [start, end] = [Math.max(0, n - CONTEXT), Math.min(rows.length, n + CONTEXT + 1)];
      const last = parts.at(-1);
      if (last && start <= last[1] + WORTH_FOLDING) last[1] = Math.max(last[1], end);
      else parts.push([start < WORTH_FOLDING ? 0 : start, end]);
    });
    const last = parts.at(-1);
    if (last && rows.length - last[1] < WORTH_FOLDING) last[1] = rows.length;
    return parts;
  }

  // The row above which a note on an old line stands: the first of the replacement that the line is in.
  function rowOfNote(rows, line) {
    let at = rows.findIndex((row) => row.old === line);
    if (at < 0 || rows[at].kind === "=") return at;
    while (at > 0 && rows[at - 1].kind !== "=") at--;
    return at;
  }

  // Puts a file into a box. `notes` are elements by the old line that they stand above.
  function show(box, file, notes, { isFolded = true, hasFolds = true } = {}) {
    const view = rowsOf(file);
    const noted = new Map();
    for (const [line, made] of notes) {
      const at = Math.max(0, rowOfNote(view.rows, line));
      noted.set(at, [...(noted.get(at) ?? []), ...made]);
    }
    const draw = (start, end) => {
      const made = document.createDocumentFragment();
      for (let n = start; n < end; n++) {
        made.append(...(noted.get(n) ?? []), cells(view, view.rows[n]));
      }
      return made;
    };
    const fold = (start, end) => {
      const made = element("div", { class: "fold" });
      if (!hasFolds) {
        made.append(`${end - start} lines`);
        return made;
      }
      const open = (from, to) => {
        const parts = [];
        if (from > start) parts.push(fold(start, from));
        parts.push(draw(from, to));
        if (to < end) parts.push(fold(to, end));
        made.replaceWith(...parts);
      };
      const button = (words, from, to) =>
        element("button", { type: "button", run: () => open(from, to) }, words);
      if (end - start > STEP && start > 0) made.append(button(`↓ ${STEP}`, start, start + STEP));
      made.append(button(`Show ${(end - start).toLocaleString("en")} unchanged lines`, start, end));
      if (end - start > STEP && end < view.rows.length) made.append(button(`↑ ${STEP}`, end - STEP, end));
      return made;
    };
    const total = view.rows.length;
    const parts = isFolded ? shownParts(view.rows, notes.keys()) : [[0, total]];
    let done = 0;
    const made = [];
    for (const [start, end] of parts) {
      if (start > done) made.push(fold(done, start));
      made.push(draw(start, end));
      done = end;
    }
    if (done < total) made.push(fold(done, total));
    box.replaceChildren(...made);
  }

  return Object.freeze({ show });
})();
