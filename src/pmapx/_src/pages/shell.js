"use strict";

// What every page has: elements made of text, the theme, the keys, and help on them.
const shell = (() => {
  // Controls, direction marks, blanks of no width and halves of a character: a reader would not
  // see them, or would see a line in another order than Python does.
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === false || value === null || value === undefined) continue;
      if (name === "run") {
        made.addEventListener("click", value);
      } else if (/^on|^style$|^srcdoc$/i.test(name)) {
        throw new Error(`no attribute ${name} is set on this page`);
      } else {
        made.setAttribute(name, value === true ? "" : value);
      }
    }
    append(made, children);
    return made;
  }

  function append(parent, children) {
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) {
        parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
      }
    }
  }

  // Text of others, with what cannot be seen shown by its number.
  function foreign(text, tag = "span", attributes = {}) {
    const made = element(tag, { dir: "ltr", ...attributes, class: `foreign ${attributes.class ?? ""}` });
    let end = 0;
    for (const found of text.matchAll(UNSEEN)) {
      if (found[0] !== "\t" && found[0] !== "\n") {
        made.append(text.slice(end, found.index), unseen(found[0]));
        end = found.index + found[0].length;
      }
    }
    made.append(text.slice(end));
    return made;
  }

  // Text of ours, with what stands in double backquotes as code.
  function prose(text) {
    return text.split("``").map((part, n) => (n % 2 ? element("code", {}, part) : part));
  }

  function unseen(character) {
    const number = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return element("span", { class: "unseen", title: "an invisible character" }, `U+${number}`);
  }

  function data(name) {
    return JSON.parse(document.getElementById(`data-${name}`).textContent);
  }

  // Where the page was opened may forbid to keep anything.
  function kept(name, value) {
    try {
      if (value !== undefined) localStorage.setItem(`pmapx-${name}`, value);
      return localStorage.getItem(`pmapx-${name}`);
    } catch {
      return null;
    }
  }

  const THEMES = { auto: "◐", light: "☀", dark: "☾" };

  function setTheme(theme) {
    const known = theme in THEMES ? theme : "auto";
    document.documentElement.dataset.theme = known;
    themeButton.replaceChildren(THEMES[known]);
    themeButton.setAttribute("aria-label", `Theme: ${known}`);
    themeButton.title = `Theme: ${known} (t)`;
    kept("theme", known);
  }

  function nextTheme() {
    const names = Object.keys(THEMES);
    const now = names.indexOf(document.documentElement.dataset.theme);
    setTheme(names[(now + 1) % names.length]);
  }

  const themeButton = element("button", { class: "icon", id: "theme", type: "button", run: nextTheme });
  const helpButton = element(
    "button",
    { class: "icon", id: "help-button", type: "button", "aria-label": "Keys", title: "Keys (?)", run: help },
    "?",
  );
  const bar = element("header", { id: "bar" });
  const main = element("main", { id: "main" });
  const dialog = element("dialog", { id: "help", "aria-label": "Keys" });
  document.body.append(bar, main, dialog);

  // The line at the top: a title, a few words, and what the page puts between them and the buttons.
  function header(title, words, ...more) {
    bar.replaceChildren(
      element("div", { class: "title" }, element("h1", {}, title), element("p", {}, words)),
      ...more,
      element("div", { class: "icons" }, themeButton, helpButton),
    );
  }

  const bindings = [];
  const byKey = new Map();

  function keys(added) {
    for (const binding of added) {
      bindings.push(binding);
      for (const key of binding.keys) byKey.set(key, binding);
    }
  }

  function isField(target) {
    return target instanceof HTMLElement && target.matches("input, select, textarea");
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const binding = byKey.get(event.key);
    if (dialog.open) {
      if (event.key === "?") dialog.close();
      return;
    }
    if (!binding || (isField(event.target) && !binding.inFields)) return;
    // Enter and space belong to the button that has the focus.
    const isButton = event.target instanceof HTMLElement && event.target.matches("button, summary, a");
    if (isButton && (event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    binding.run(event);
  });

  const SHOWN = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc" };

  function help() {
    const rows = bindings.map((binding) =>
      element(
        "tr",
        {},
        element("td", {}, binding.keys.map((key) => [element("kbd", {}, SHOWN[key] ?? key), " "])),
        element("td", {}, binding.does),
      ),
    );
    dialog.replaceChildren(
      element("h2", {}, "Keys"),
      element("table", {}, element("tbody", {}, rows)),
      element("button", { type: "button", class: "close", run: () => dialog.close() }, "Close"),
    );
    dialog.showModal();
  }

  // A click beside the dialog closes it.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  keys([
    { keys: ["t"], does: "theme: system, light, dark", run: nextTheme },
    { keys: ["?"], does: "these keys", run: help },
  ]);
  setTheme(kept("theme") ?? "auto");

  return Object.freeze({ append, bar, data, element, foreign, header, keys, kept, main, prose });
})();
