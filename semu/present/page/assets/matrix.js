// Squares in rows and columns: how much each is, or whose it is; one of several panels at a time.

/** @typedef {{name: string, of: Place}} Panel */

/**
 * A table of squares. With `owners`, a value is 0 for nothing, 1 + 2 x owner for a part and 2 + 2 x owner for all of a
 * square; else it is an amount, dark where it is the largest of all panels.
 */
class Matrix {
  /** @param {HTMLElement} place @param {any} table @param {Store} store */
  constructor(place, table, store) {
    this.place = place;
    this.table = table;
    /** @type {Panel[]} */ this.panels = table.panels;
    this.values = this.panels.map((panel) => store.of(panel.of));
    this.highest = 0;
    for (const own of this.values) for (const value of own) this.highest = Math.max(this.highest, value);
    this.highest = this.highest || 1;
    this.panel = 0;
    this.select = make("select", { "aria-label": table.what });
    this.panels.forEach((panel, number) => this.select.append(make("option", { value: String(number) }, panel.name)));
    this.select.addEventListener("change", () => { this.panel = Number(this.select.value); this.draw(); });
    this.canvas = make("canvas", { class: "matrix", role: "img", "aria-label": place.dataset.said || "" });
    this.said = make("div", { class: "picked", "aria-live": "polite" }, `Point at a square: ${table.rows.name}, ${table.columns.name} and what it is.`);
    this.legend = make("div", { class: "legend" });
    place.append(make("div", { class: "controls" }, make("label", {}, `${table.what} `, this.select)), this.legend, this.canvas, this.said);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    new ResizeObserver(() => this.draw()).observe(place);
    onTheme(() => this.draw());
  }

  /** The side of a square [CSS pixels] and where the first is. */
  sizes() {
    const { count: rows } = this.table.rows, { count: columns } = this.table.columns;
    const width = this.place.clientWidth - LEFT - RIGHT, wide = width / columns;
    const tall = this.table.owners ? Math.min(wide, 560 / rows) : Math.max(3, Math.min(34, 520 / rows));
    return { rows, columns, wide: this.table.owners ? tall : Math.min(wide, 120), tall };
  }

  draw() {
    const ratio = devicePixelRatio || 1, { rows, columns, wide, tall } = this.sizes();
    const context = this.canvas.getContext("2d");
    if (!context || this.place.clientWidth <= LEFT) return;
    const width = LEFT + columns * wide + RIGHT, height = rows * tall + AXIS;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    const values = this.values[this.panel], gap = Math.min(wide, tall) > 6 ? 0.8 : 0;
    const edge = (/** @type {number} */ number) => Math.round(number * ratio) / ratio;
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        const color = this.color(values[row * columns + column]);
        if (!color) continue;
        context.fillStyle = color;
        const left = edge(LEFT + column * wide), top = edge(row * tall);
        context.fillRect(left, top, edge(LEFT + (column + 1) * wide) - left - gap, edge((row + 1) * tall) - top - gap);
      }
    context.fillStyle = ink("--soft");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const row of marks(rows, tall, 16)) context.fillText(String(row), LEFT - 6, Math.max((row + 0.5) * tall, 6));
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const column of marks(columns, wide, 34)) context.fillText(String(column), LEFT + (column + 0.5) * wide, rows * tall + 6);
    this.key();
  }

  /** @param {number} value */
  color(value) {
    if (!this.table.owners) return `color-mix(in srgb, ${HUES[0]} ${(100 * value) / this.highest}%, ${ink("--idle")})`;
    if (value < 1) return "";
    const owner = (value - 1) >> 1;
    return ownerColor(owner, value % 2 === 1);
  }

  key() {
    const entries = this.table.owners
      ? Array.from({ length: Math.min(this.table.owners, 12) }, (_, owner) => /** @type {[string, string]} */ ([`${this.table.owner} ${owner}`, ownerColor(owner, false)]))
      : [/** @type {[string, string]} */ ([`${this.highest.toPrecision(4)} ${this.table.unit}`, this.color(this.highest)]), /** @type {[string, string]} */ (["0", this.color(0)])];
    this.legend.replaceChildren(...entries.map(([name, color]) => make("span", {}, make("i", { style: `background:${color}` }), name)),
      ...(this.table.note ? [make("span", { class: "note" }, this.table.note)] : []));
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const { rows, columns, wide, tall } = this.sizes();
    const row = Math.floor(event.offsetY / tall), column = Math.floor((event.offsetX - LEFT) / wide);
    if (row < 0 || row >= rows || column < 0 || column >= columns) return;
    const value = this.values[this.panel][row * columns + column];
    const where = `${this.table.rows.name} ${row}, ${this.table.columns.name} ${column}: `;
    if (!this.table.owners) this.said.textContent = `${where}${value.toPrecision(5)} ${this.table.unit}`;
    else this.said.textContent = where + (value < 1 ? "nothing" : `${value % 2 ? "part of it, " : ""}${this.table.owner} ${(value - 1) >> 1}`);
  }
}

/** Rows or columns whose number is written. @param {number} count @param {number} size @param {number} least [pixels] */
function marks(count, size, least) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => one * size >= least) || count;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

/** The first six owners have hues, those after them darker and lighter ones. @param {number} owner @param {boolean} isPart */
function ownerColor(owner, isPart) {
  const shade = [0, -0.4, 0.3][Math.floor(owner / HUES.length) % 3];
  return mixed(HUES[owner % HUES.length], isPart ? Math.min(0.8, Math.max(shade, 0) + 0.5) : shade);
}
