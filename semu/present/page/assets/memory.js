// Memory of one rank over time, stacked by kind.

/** @type {Record<string, string>} */
const ROLES = {
  parameter: "#0072b2", gradient: "#56b4e9", "optimizer state": "#a9b4bc", activation: "#e69f00", workspace: "#d55e00",
  communication: "#cc79a7",
};

class MemoryChart {
  /** @param {HTMLElement} place @param {Run[]} runs @param {Store} store @param {(s: number) => void} onCursor */
  constructor(place, runs, store, onCursor) {
    this.runs = runs;
    this.store = store;
    this.onCursor = onCursor;
    this.endS = Math.max(...runs.map((run) => run.endS), 1e-9);
    this.view = [0, this.endS];
    this.width = 0;
    /** Run and row that are shown: the fullest rank of the last run. */
    this.run = runs.length - 1;
    const peaks = runs[this.run].memory.map((one) => one.peak.GiB);
    this.row = Math.max(peaks.indexOf(Math.max(...peaks)), 0);
    this.select = make("select", { "aria-label": "rank whose memory is shown" });
    runs.forEach((run, number) => run.memory.length && run.ranks.forEach((rank, row) =>
      this.select.append(make("option", { value: `${number},${row}` }, (runs.length > 1 ? `${run.name}, ` : "") + `rank ${rank}`))));
    this.select.addEventListener("change", () => {
      const [number, row] = this.select.value.split(",").map(Number);
      this.choose(number, row);
    });
    this.peak = make("span", {});
    /** In place of the list, on paper. */
    this.whose = make("span", { class: "paper" });
    this.box = make("div", {});
    /** Plans and recordings know of none. */
    this.isKnown = runs.some((run) => run.memory.length > 0);
    if (this.isKnown)
      place.append(make("div", { class: "controls kept" }, make("label", {}, "memory of ", this.select), this.whose, this.peak), this.box);
    onTheme(() => this.make());
  }

  /** @param {number} number @param {number} row */
  choose(number, row) {
    if (this.run === number && this.row === row && this.plot) return;
    this.run = number;
    this.row = row;
    this.make();
  }

  make() {
    const run = this.runs[this.run], table = run.memory[this.row];
    if (!this.width || !table) return;
    const points = table.points;
    this.select.value = `${this.run},${this.row}`;
    this.whose.textContent = `memory of ${this.select.selectedOptions[0].textContent}:`;
    const { peak, capacity } = table;
    this.peak.textContent = `peak ${peak.GiB.toFixed(2)} of ${capacity.toFixed(2)} GiB at ${seconds(peak.s)}` +
      (peak.stage ? ` in ${peak.stage}` : "") + (peak.operator ? `, ${peak.operator}` : "");
    const times = Array.from({ length: points + 1 }, (_, i) => (run.endS * i) / points);
    /** @type {number[][]} */ const levels = [];
    let below = new Array(points + 1).fill(0);
    /** @type {Numbers[]} */ const own = table.byRole.map((/** @type {Place} */ one) => this.store.of(one));
    for (const values of own) {
      below = below.map((level, i) => level + values[Math.min(i, points - 1)]);
      levels.push(below);
    }
    const line = ink("--line"), text = ink("--soft");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    const names = table.roles;
    /** @type {any[]} */ const series = [{ label: "time", value: (/** @type {any} */ _, /** @type {number|null} */ s) => (s == null ? "" : seconds(s)) }];
    for (let i = names.length - 1; i >= 0; i--) {
      const color = ROLES[names[i]] || "#7a5c3e";
      series.push({
        label: names[i].replaceAll("_", " "), fill: color, stroke: color, width: 0, points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }),
        value: (/** @type {any} */ _, /** @type {any} */ __, /** @type {any} */ ___, /** @type {number|null} */ at) =>
          at == null ? "" : `${own[i][Math.min(at, points - 1)].toFixed(2)} GiB`,
      });
    }
    series.push({ label: "capacity", stroke: ink("--limit"), dash: [6, 4], width: 1.4, points: { show: false },
      value: () => `${capacity.toFixed(2)} GiB` });
    const data = [times, ...levels.slice().reverse(), times.map(() => capacity)];
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot({
      width: this.width, height: 250, series, padding: [8, RIGHT, 0, 0], scales: {
        x: { time: false, range: () => this.view },
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, 1.05 * Math.max(high, capacity)] },
      },
      axes: [{ ...axis, label: "time [s]", labelSize: 16, labelFont: "11px system-ui" },
        { ...axis, size: LEFT - 16, label: "allocated [GiB]", labelSize: 16, labelFont: "11px system-ui" }],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      hooks: { setCursor: [(/** @type {any} */ plot) => {
        if (plot.cursor.left >= 0 && plot.cursor.event) this.onCursor(plot.posToVal(plot.cursor.left, "x"));
      }] },
    }, data, this.box);
  }

  /** @param {number} width */
  resize(width) {
    if (width === this.width) return;
    this.width = width;
    this.make();
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    if (this.view[0] === from && this.view[1] === to) return;
    this.view = [from, to];
    if (this.plot) this.plot.setScale("x", { min: from, max: to });
  }

  /** Marks a time. @param {number} s, less than 0: none */
  cursor(s) {
    if (this.plot) this.plot.setCursor({ left: s < 0 ? -10 : this.plot.valToPos(s, "x"), top: s < 0 ? -10 : 10 }, false);
  }
}
