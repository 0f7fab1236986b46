"use strict";

// Lists of photos: search, narrow down, sort.
for (const list of document.querySelectorAll(".cards")) {
  const tools = list.querySelector(".tools");
  const cards = [...list.querySelectorAll("article")];
  const words = (card) => [...card.querySelectorAll("td[dir], li, figcaption")].map((one) => one.textContent).join(" ");
  const texts = cards.map((card) => words(card).toLowerCase());
  const { search, kind, order } = tools.elements;
  const key = (card) => Number(card.dataset.keys.split(" ")[order.value]);

  const update = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (card, text) =>
      wanted.every((word) => text.includes(word)) &&
      (!kind || !kind.value || card.dataset.kinds.split(" ").includes(kind.value));
    cards.forEach((card, n) => (card.hidden = !fits(card, texts[n])));
    const sorted = order && order.value ? [...cards].sort((a, b) => key(a) - key(b)) : cards;
    list.append(...sorted);
    const shown = cards.filter((card) => !card.hidden).length;
    tools.querySelector("output").value = `${shown} of ${cards.length} photos`;
  };
  tools.hidden = false;
  if (tools.closest(".fold")) tools.closest(".fold").hidden = false;
  tools.addEventListener("input", update);
  tools.addEventListener("submit", (event) => event.preventDefault());
  update();
}

// Tables: a click on the head of a column sorts by it, a second one the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const [head] = table.tHead.rows;
  const body = table.tBodies[0];
  [...head.cells].slice(1).forEach((cell, n) => {
    const sort = () => {
      const down = cell.ariaSort !== "descending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => Number(row.cells[n + 1].dataset.value ?? NaN);
      const rows = [...body.rows].sort((a, b) => {
        if (Number.isNaN(value(a)) || Number.isNaN(value(b))) return Number.isNaN(value(a)) - Number.isNaN(value(b));
        return down ? value(b) - value(a) : value(a) - value(b);
      });
      body.append(...rows);
    };
    cell.tabIndex = 0;
    cell.title = "sort by this";
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort();
    });
  });
}

// Words: pointed at, a word shows on the photo what it rests on; clicked, it stays.
let shown = null;
let kept = null;

function show(word) {
  if (word === shown) return;
  for (const [one, on] of [[shown, false], [word, true]]) {
    if (!one) continue;
    one.classList.toggle("on", on);
    const canvas = one.closest("article").querySelector("canvas");
    const levels = on ? [...one.dataset.at].map(Number) : [];
    canvas.width = canvas.height = Math.sqrt(levels.length) || 1; // which also clears it
    if (!on) continue;
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    levels.forEach((level, n) => image.data.set([255, 80, 20, Math.round(205 * Math.sqrt(level / 9))], 4 * n));
    context.putImageData(image, 0, 0);
  }
  shown = word;
}

const wordOf = (event) => (event.target.closest ? event.target.closest("[data-at]") : null);
document.addEventListener("pointerover", (event) => show(wordOf(event) || kept));
document.addEventListener("click", (event) => {
  const word = wordOf(event);
  kept = word === kept ? null : word;
  show(kept);
});
