// Tables that sort by a click on a heading and show only rows with some words.

const FEW = 8;

/** @param {HTMLTableElement} table */
function liven(table) {
  const body = table.tBodies[0], rows = [...body.rows];
  const heads = [...(/** @type {HTMLTableSectionElement} */ (table.tHead)).rows[0].cells];
  const buttons = heads.map((head) => make("button", { type: "button" }, head.textContent || ""));
  heads.forEach((head, column) => {
    const button = buttons[column];
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const isUp = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other, i) => {
        other.setAttribute("aria-sort", "none");
        buttons[i].textContent = (buttons[i].textContent || "").replace(/ [\u25b2\u25bc]$/, "");
      });
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      button.textContent += isUp ? " \u25b2" : " \u25bc";
      const sorted = rows.slice().sort((a, b) => compared(a.cells[column], b.cells[column]) * (isUp ? 1 : -1));
      body.append(...sorted);
    });
  });
  if (rows.length <= FEW) return;
  const search = make("input", { type: "search", placeholder: "show rows with ...", "aria-label": "show rows with" });
  const count = make("span", { class: "note", "aria-live": "polite" }, `${rows.length} rows`);
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = (row.textContent || "").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown++;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  });
  table.parentElement?.before(make("div", { class: "controls" }, search, count));
}

/** Numbers by size, words by letters; what is empty comes last. @param {HTMLTableCellElement} a @param {HTMLTableCellElement} b */
function compared(a, b) {
  const one = a.dataset.v, other = b.dataset.v;
  if (one !== undefined && other !== undefined) return Number(one) - Number(other);
  if (one !== undefined || other !== undefined) return one !== undefined ? 1 : -1;
  return (a.textContent || "").localeCompare(b.textContent || "", "en", { numeric: true });
}
