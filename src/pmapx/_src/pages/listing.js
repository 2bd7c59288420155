"use strict";

// A list of any length: only the rows in sight are elements.
const listing = (() => {
  const { element } = shell;
  const BEYOND = 400;

  // `heightOf(item)` in pixels, `draw(item, index)` gives the element of a row.
  function make(label, heightOf, draw) {
    const room = element("div", { class: "room" });
    const box = element("div", { class: "listing", role: "listbox", tabindex: "0", "aria-label": label }, room);
    let items = [];
    let tops = [0];
    let first = 0;
    let last = 0;

    // The first row whose end is below a height.
    function rowAt(height) {
      let [low, high] = [0, items.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (tops[middle + 1] <= height) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    function paint(isForced) {
      const from = rowAt(box.scrollTop - BEYOND);
      const to = Math.min(items.length, rowAt(box.scrollTop + box.clientHeight + BEYOND) + 1);
      if (!isForced && from === first && to === last) return;
      [first, last] = [from, to];
      const rows = [];
      for (let n = from; n < to; n++) {
        const row = draw(items[n], n);
        row.style.top = `${tops[n]}px`;
        row.style.height = `${tops[n + 1] - tops[n]}px`;
        rows.push(row);
      }
      room.replaceChildren(...rows);
    }

    function set(added) {
      items = added;
      tops = [0];
      for (const item of items) tops.push(tops.at(-1) + heightOf(item));
      room.style.height = `${tops.at(-1)}px`;
      paint(true);
    }

    function reveal(index, above = 0) {
      const [top, bottom] = [tops[index] - above, tops[index + 1]];
      if (top < box.scrollTop) box.scrollTop = top;
      else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
    }

    box.addEventListener("scroll", () => paint(false), { passive: true });
    new ResizeObserver(() => paint(true)).observe(box);
    return { box, set, reveal, paint: () => paint(true) };
  }

  return Object.freeze({ make });
})();
