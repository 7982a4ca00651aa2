// Dots (configurations of a grid, measured runs) and lines (values over something), by uPlot.

/** @typedef {{name: string, values: string[], of: Place}} Axis */

/** Dots with filters per axis; a click shows what a dot is. On logarithmic axes where `isLog`, with the diagonal where
 * `isEqual`, each with its interval where `low` and `high` are there. */
class Scatter {
  /** @param {HTMLElement} place @param {any} table @param {Store} store */
  constructor(place, table, store) {
    this.place = place;
    this.table = table;
    this.xs = store.of(table.x.of);
    this.ys = store.of(table.y.of);
    this.fits = store.of(table.fits);
    this.low = table.low ? store.of(table.low) : null;
    this.high = table.high ? store.of(table.high) : null;
    /** @type {Axis[]} */ this.axes = table.axes;
    this.columns = this.axes.map((axis) => store.of(axis.of));
    /** @type {(number|null)[]} */ this.wanted = this.axes.map(() => null);
    this.colorBy = 0;
    /** @type {number[]} */ this.kept = [];
    this.picked = make("div", { class: "picked", "aria-live": "polite" }, table.hint);
    this.count = make("span", { class: "note", "aria-live": "polite" });
    this.legend = make("div", { class: "legend" });
    this.box = make("div", {});
    place.append(this.controls(), this.legend, this.box, this.picked);
    this.keep();
    new ResizeObserver(() => this.draw()).observe(place);
    onTheme(() => this.draw());
  }

  controls() {
    const found = make("div", { class: "controls" });
    this.axes.forEach((axis, number) => {
      const select = make("select", { "aria-label": axis.name, "data-axis": axis.name }, make("option", { value: "" }, "any"));
      axis.values.forEach((value, i) => select.append(make("option", { value: String(i) }, value)));
      select.addEventListener("change", () => {
        this.wanted[number] = select.value === "" ? null : Number(select.value);
        this.keep();
        this.draw();
      });
      found.append(make("label", {}, `${axis.name} `, select));
    });
    if (this.axes.length) {
      const color = make("select", { "aria-label": "colour" });
      this.axes.forEach((axis, i) => color.append(make("option", { value: String(i) }, axis.name)));
      color.addEventListener("change", () => { this.colorBy = Number(color.value); this.draw(); });
      found.append(make("label", {}, "colour ", color));
    }
    found.append(this.count);
    return found;
  }

  keep() {
    const kept = [];
    for (let i = 0; i < this.xs.length; i++)
      if (this.columns.every((column, number) => this.wanted[number] === null || column[i] === this.wanted[number])) kept.push(i);
    this.kept = kept;
    this.count.textContent = `${this.kept.length} of ${this.xs.length} ${this.table.what}`;
  }

  draw() {
    const width = this.place.clientWidth;
    if (!width) return;
    const kept = this.kept, column = this.columns[this.colorBy];
    const hues = kept.map((i) => HUES[column ? column[i] % HUES.length : 0]);
    this.legend.replaceChildren(...(column ? this.axes[this.colorBy].values : []).map((value, i) =>
      make("span", {}, make("i", { style: `background:${HUES[i % HUES.length]}` }), `${this.axes[this.colorBy].name} ${value}`)),
      ...(this.table.hollow ? [make("span", {}, `hollow: ${this.table.hollow}`)] : []));
    const data = [kept.map((i) => this.xs[i]), kept.map((i) => this.ys[i])];
    const limit = this.table.limit, line = ink("--line"), text = ink("--soft");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui", labelFont: "12px system-ui" };
    if (this.plot) this.plot.destroy();
    /** Pixels of every dot. @type {[number, number][]} */ this.dots = [];
    const paint = (/** @type {any} */ plot) => {
      const context = plot.ctx, ratio = devicePixelRatio || 1;
      context.save();
      if (this.table.isEqual) this.paintDiagonal(plot);
      this.dots = kept.map((i) => [plot.valToPos(this.xs[i], "x", true), plot.valToPos(this.ys[i], "y", true)]);
      this.dots.forEach(([x, y], at) => {
        context.beginPath();
        context.arc(x, y, 4.5 * ratio, 0, 7);
        context.strokeStyle = context.fillStyle = hues[at];
        context.lineWidth = 1.3 * ratio;
        if (this.fits[kept[at]]) context.fill();
        else context.stroke();
        if (this.low && this.high && this.high[kept[at]] > 0) {
          context.beginPath();
          context.moveTo(x, plot.valToPos(this.low[kept[at]], "y", true));
          context.lineTo(x, plot.valToPos(this.high[kept[at]], "y", true));
          context.stroke();
        }
      });
      if (limit) {
        const y = plot.valToPos(limit, "y", true);
        context.strokeStyle = ink("--limit");
        context.setLineDash([6 * ratio, 4 * ratio]);
        context.beginPath();
        context.moveTo(plot.bbox.left, y);
        context.lineTo(plot.bbox.left + plot.bbox.width, y);
        context.stroke();
      }
      context.restore();
    };
    const highest = kept.reduce((high, i) => Math.max(high, this.ys[i]), limit || 0);
    const isLog = Boolean(this.table.isLog), [bottom, top] = this.ends();
    const both = { time: false, distr: isLog ? 3 : 1 };
    this.plot = new uPlot({
      width, height: 420, padding: [10, 16, 0, 0], legend: { show: false },
      scales: isLog || this.table.isEqual ? { x: { ...both, range: () => [bottom, top] }, y: { ...both, range: () => [bottom, top] } } : {
        x: { ...both, range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => low === null ? [0, 1] : [Math.max(0, low - 0.05 * (high - low || 1)), high + 0.05 * (high - low || 1)] },
        y: { ...both, range: () => [0, 1.08 * highest || 1] } },
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      axes: [{ ...axis, label: this.table.x.name }, { ...axis, label: this.table.y.name, size: 62 }],
      cursor: { drag: { x: false, y: false }, points: { show: false } }, hooks: { draw: [paint] },
    }, sortedByFirst(data), this.box);
    const over = this.plot.over;
    over.addEventListener("click", (/** @type {MouseEvent} */ event) => this.pick(event));
  }

  /** Where axes with equal ends begin and end. @returns {[number, number]} */
  ends() {
    let low = Infinity, high = 0;
    for (const i of this.kept)
      for (const value of [this.xs[i], this.ys[i]])
        if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    if (!this.table.isLog) return [0, 1.08 * high || 1];
    return high > 0 ? [low / 1.4, high * 1.4] : [0.1, 1];
  }

  /** Where both axes are equal. @param {any} plot */
  paintDiagonal(plot) {
    const context = plot.ctx, [low, high] = this.ends();
    context.strokeStyle = ink("--soft");
    context.lineWidth = devicePixelRatio || 1;
    context.beginPath();
    context.moveTo(plot.valToPos(low, "x", true), plot.valToPos(low, "y", true));
    context.lineTo(plot.valToPos(high, "x", true), plot.valToPos(high, "y", true));
    context.stroke();
  }

  /** @param {MouseEvent} event */
  pick(event) {
    const ratio = devicePixelRatio || 1, box = this.plot.bbox;
    const x = event.offsetX * ratio + box.left, y = event.offsetY * ratio + box.top;
    let best = -1, least = (16 * ratio) ** 2;
    (this.dots || []).forEach(([left, top], at) => {
      const away = (left - x) ** 2 + (top - y) ** 2;
      if (away < least) { least = away; best = at; }
    });
    if (best < 0) return;
    const i = this.kept[best];
    this.picked.textContent = `${this.table.labels[i]}\n${this.table.x.name} ${this.xs[i].toPrecision(5)}, ${this.table.y.name} ${this.ys[i].toPrecision(4)}` +
      `${this.fits[i] || !this.table.hollow ? "" : `, ${this.table.hollow}`}\n${this.table.flags[i]}`;
  }
}

/** uPlot wants its first column in order. @param {number[][]} data */
function sortedByFirst(data) {
  const order = data[0].map((_, i) => i).sort((a, b) => data[0][a] - data[0][b]);
  return data.map((column) => order.map((i) => column[i]));
}

/** Steps between ticks of whole numbers. */
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((part) => part * 10 ** power));

/** Values over something, as lines. */
class Lines {
  /** @param {HTMLElement} place @param {any} table @param {Store} store */
  constructor(place, table, store) {
    this.place = place;
    this.table = table;
    this.data = [table.x.of, ...table.series.map((/** @type {any} */ one) => one.of)].map((one) =>
      Array.from(store.of(one), (value) => (Number.isFinite(value) ? value : null)));
    this.box = make("div", {});
    place.append(this.box);
    new ResizeObserver(() => this.draw()).observe(place);
    onTheme(() => this.draw());
  }

  draw() {
    const width = this.place.clientWidth;
    if (!width) return;
    const line = ink("--line"), text = ink("--soft"), table = this.table;
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui", labelFont: "12px system-ui" };
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot({
      width, height: 320, padding: [10, 16, 0, 0], scales: { x: { time: false, distr: table.x.isLog ? 3 : 1 } },
      series: [{ label: table.x.name }, ...table.series.map((/** @type {any} */ one, /** @type {number} */ i) => ({
        label: one.name, stroke: HUES[i % HUES.length], width: 1.8, dash: one.isLimit ? [6, 4] : undefined,
        paths: one.isStep ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: false } }))],
      axes: [{ ...axis, label: table.x.name, ...(table.x.isWhole ? { incrs: WHOLE } : {}) }, { ...axis, label: table.y.name, size: 70 }],
    }, this.data, this.box);
  }
}
