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
    this.outer = pieces(table.outer, store);
    this.outerName = store.of(table.outer.name);
    this.critical = pieces(table.critical, store);
  }

  /** The stage of a row at a time, or -1. @param {number} row @param {number} time @returns {number} */
  stageAt(row, time) {
    let low = this.first[row], high = this.first[row + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= time) low = middle + 1;
      else high = middle;
    }
    const found = low - 1;
    return found >= this.first[row] && time <= this.start[found] + this.lasted[found] ? found : -1;
  }

  /** What runs outside stages in a row at a time, near enough. @param {number} row @param {number} time @param {number} near [s] */
  outerAt(row, time, near) {
    let best = -1;
    for (let i = 0; i < this.outer.row.length; i++) {
      if (this.outer.row[i] !== row) continue;
      const from = this.outer.start[i], to = from + this.outer.lasted[i];
      if (time >= from - near && time <= to + near && (best < 0 || this.outer.lasted[i] < this.outer.lasted[best])) best = i;
    }
    return best;
  }
}

/** @param {any} table @param {Store} store */
function pieces(table, store) {
  return {
    row: store.of(table.row), start: store.of(table.start), lasted: store.of(table.lasted), lane: store.of(table.lane),
  };
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

/** Dark or light, whichever is read on a colour. @param {string} color */
function inkOn(color) {
  const [r, g, b] = (color.match(/\d+/g) || ["0", "0", "0"]).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1f2328" : "#ffffff";
}
