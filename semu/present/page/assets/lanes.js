// Stages and transfers of a run as boxes of equal rows, and how they are looked up and drawn.

const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7a5c3e"];
/** What lighter and darker colours of a hue stand for. @type {Record<string, number>} */
const SHADES = { forward: 0.55, "input gradient": 0.2, "weight gradient": -0.35 };
/** Top and bottom of the lanes in a row: stages, transfers, collectives. */
const LANES = [[0.06, 0.7], [0.73, 0.82], [0.85, 0.94]];

/** @typedef {{module: string, phase: string}} Kind */
/** @typedef {{name: string, s: number}} Cost */

/** A run, its arrays found. */
class Run {
  /** @param {any} table @param {Store} store */
  constructor(table, store) {
    /** @type {string} */ this.name = table.name;
    /** @type {number} */ this.endS = table.endS;
    /** @type {number} */ this.makespanS = table.makespanS;
    /** @type {number} */ this.iterationS = table.iterationS;
    /** @type {number} */ this.bubble = table.bubble;
    /** @type {number[]} */ this.ranks = table.ranks;
    /** @type {string[]} */ this.texts = table.texts;
    /** @type {Kind[]} */ this.kinds = table.stages.kinds;
    /** @type {Cost[][]} */ this.costly = table.stages.costly;
    /** @type {any[]} */ this.memory = table.memory;
    const { first, label, start, lasted, kind, microbatch, wait, group } = table.stages;
    this.first = store.of(first);
    this.label = store.of(label);
    this.start = store.of(start);
    this.lasted = store.of(lasted);
    this.kind = store.of(kind);
    this.microbatch = store.of(microbatch);
    this.wait = store.of(wait);
    this.group = store.of(group);
    /** Stages of every row. */
    const every = Uint32Array.from(this.start.keys());
    this.stages = this.ranks.map((_, row) => new Track(every.subarray(this.first[row], this.first[row + 1]), this.start, this.lasted));
    this.outer = new Pieces(table.outer, store, this.ranks.length);
    this.outerName = store.of(table.outer.name);
    this.critical = new Pieces(table.critical, store, this.ranks.length);
  }

  /** The stage of a row at a time, or -1. @param {number} row @param {number} time @returns {number} */
  stageAt(row, time) {
    const found = this.stages[row].before(time);
    return found >= 0 && time <= this.start[found] + this.lasted[found] ? found : -1;
  }

  /** What runs outside stages in a row at a time, near enough. @param {number} row @param {number} time @param {number} near [s] */
  outerAt(row, time, near) {
    let best = -1;
    for (const lane of LANES.keys()) {
      const track = this.outer.track(row, lane), { items, start, lasted } = track;
      for (let k = track.first(time - near); k < items.length && start[items[k]] <= time + near; k++) {
        const i = items[k];
        if (start[i] + lasted[i] >= time - near && (best < 0 || lasted[i] < lasted[best])) best = i;
      }
    }
    return best;
  }
}

/** Boxes of one lane in order of their beginning. */
class Track {
  /** @param {Uint32Array} items which boxes @param {Numbers} start of all boxes @param {Numbers} lasted of all boxes */
  constructor(items, start, lasted) {
    this.items = items;
    this.start = start;
    this.lasted = lasted;
    /** @type {Float64Array|null} */ this.summed = null;
    /** The latest end so far. */
    this.reach = new Float64Array(items.length);
    let latest = -Infinity;
    for (let k = 0; k < items.length; k++) this.reach[k] = latest = Math.max(latest, start[items[k]] + lasted[items[k]]);
  }

  /** The place of the first box that may end at a time or later. @param {number} time @param {number} low @returns {number} */
  first(time, low = 0) {
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reach[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The place of the first box that begins after a time. @param {number} time @returns {number} */
  after(time) {
    let low = 0, high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[this.items[middle]] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Counts the time of every kind until a moment. @param {Numbers} kind of all boxes @param {number} kinds
   * @param {number} time @param {number} sign @param {Float64Array} into of every kind */
  count(kind, kinds, time, sign, into) {
    const sums = this.sums(kind, kinds), place = this.first(time);
    for (let k = 0; k < kinds; k++) into[k] += sign * sums[place * kinds + k];
    if (place === this.items.length) return;
    const i = this.items[place];
    if (this.start[i] < time) into[kind[i]] += sign * (time - this.start[i]);
  }

  /** Time of every kind before each box, and in all: [boxes + 1, kinds]. @param {Numbers} kind of all boxes @param {number} kinds */
  sums(kind, kinds) {
    if (!this.summed) {
      const found = new Float64Array((this.items.length + 1) * kinds);
      for (let k = 0; k < this.items.length; k++) {
        found.copyWithin((k + 1) * kinds, k * kinds, (k + 1) * kinds);
        found[(k + 1) * kinds + kind[this.items[k]]] += this.lasted[this.items[k]];
      }
      this.summed = found;
    }
    return this.summed;
  }

  /** The last box that begins by a time, or -1. @param {number} time @returns {number} */
  before(time) {
    const place = this.after(time);
    return place ? this.items[place - 1] : -1;
  }
}

/** Boxes outside stages, or of the critical path: of every row and lane in order of their beginning. */
class Pieces {
  /** @param {any} table @param {Store} store @param {number} rows */
  constructor(table, store, rows) {
    this.start = store.of(table.start);
    this.lasted = store.of(table.lasted);
    this.lane = store.of(table.lane);
    const row = store.of(table.row), lanes = LANES.length;
    const counts = new Uint32Array(rows * lanes + 1);
    for (let i = 0; i < row.length; i++) counts[row[i] * lanes + this.lane[i] + 1]++;
    for (let k = 0; k < rows * lanes; k++) counts[k + 1] += counts[k];
    const places = counts.slice(), order = new Uint32Array(row.length);
    for (let i = 0; i < row.length; i++) order[places[row[i] * lanes + this.lane[i]]++] = i;
    this.tracks = Array.from({ length: rows * lanes }, (_, k) =>
      new Track(order.subarray(counts[k], counts[k + 1]), this.start, this.lasted));
  }

  /** @param {number} row @param {number} lane */
  track(row, lane) { return this.tracks[row * LANES.length + lane]; }
}

/** A hue mixed with white (share above 0) or black. @param {string} hue @param {number} share */
function mixed(hue, share) {
  const to = share >= 0 ? 255 : 0, part = Math.abs(share);
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(hue.slice(at, at + 2), 16) * (1 - part) + to * part));
  return `rgb(${parts.join(",")})`;
}

/** Colours of kinds, by module with shades for phases, or by phase alone. @param {Kind[]} kinds @param {boolean} byPhase */
function colors(kinds, byPhase) {
  const words = byPhase ? kinds.map((kind) => kind.phase) : kinds.map((kind) => kind.module);
  const distinct = [...new Set(words)];
  return kinds.map((kind, i) =>
    mixed(HUES[distinct.indexOf(words[i]) % HUES.length], byPhase ? 0.15 : SHADES[kind.phase] || 0));
}

/** Red, green and blue of a colour, 0 to 255. @param {string} color `rgb(...)` or `#rrggbb` @returns {number[]} */
function parts(color) {
  if (color[0] === "#") return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return (color.match(/\d+/g) || ["0", "0", "0"]).map(Number);
}

/** Dark or light, whichever is read on a colour. @param {string} color */
function inkOn(color) {
  const [r, g, b] = parts(color);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1f2328" : "#ffffff";
}
