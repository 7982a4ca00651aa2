// The timeline: zoom, pan, hover, the critical path; memory of a rank below, on the same time axis.

const LEFT = 86, RIGHT = 14, AXIS = 26, HEAD = 20;
/** Steps of a blended colour, so that neighbours are alike. */
const BLEND = 8;

/** Boxes by colour, so that a colour is set once; those that touch and are alike are one. */
class Brush {
  constructor() {
    /** @type {Map<string, number[]>} */ this.boxes = new Map();
  }

  /** @param {string} color @param {number} left @param {number} y @param {number} right @param {number} tall */
  box(color, left, y, right, tall) {
    let own = this.boxes.get(color);
    if (!own) this.boxes.set(color, (own = []));
    const wide = right - left, last = own.length - 4;
    if (wide < 2 && last >= 0 && own[last + 1] === y && own[last + 3] === tall && left - own[last] - own[last + 2] < 0.5)
      own[last + 2] = right - own[last];
    else own.push(left, y, wide - (wide > 5 ? 0.8 : 0), tall);
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    for (const [color, own] of this.boxes) {
      context.fillStyle = color;
      for (let k = 0; k < own.length; k += 4) context.fillRect(own[k], own[k + 1], own[k + 2], own[k + 3]);
    }
  }
}

/** Colours of pixels in which several stages lie, each with the share of its time. */
class Blend {
  /** @param {string[]} palette of kinds */
  constructor(palette) {
    this.parts = [...palette, ink("--idle")].map(parts);
    this.shares = new Float64Array(this.parts.length);
    /** @type {Map<number, string>} */ this.known = new Map();
  }

  /** @param {Run} run @param {Track} track @param {number} from @param {number} to [s] @returns {string} */
  of(run, track, from, to) {
    const shares = this.shares.fill(0), idle = shares.length - 1, all = to - from;
    track.count(run.kind, idle, to, 1, shares);
    track.count(run.kind, idle, from, -1, shares);
    let busy = 0;
    for (let kind = 0; kind < idle; kind++) busy += shares[kind];
    shares[idle] = Math.max(all - busy, 0);
    let red = 0, green = 0, blue = 0;
    for (let k = 0; k <= idle; k++) {
      const part = this.parts[k], share = shares[k] / all / BLEND;
      red += part[0] * share;
      green += part[1] * share;
      blue += part[2] * share;
    }
    const key = (Math.round(red) << 16) | (Math.round(green) << 8) | Math.round(blue);
    let found = this.known.get(key);
    if (found === undefined)
      this.known.set(key, (found = `rgb(${BLEND * (key >> 16)},${BLEND * ((key >> 8) & 255)},${BLEND * (key & 255)})`));
    return found;
  }
}

class Timeline {
  /** @param {HTMLElement} place @param {any} table @param {Store} store */
  constructor(place, table, store) {
    this.place = place;
    /** @type {Run[]} */ this.runs = table.runs.map((/** @type {any} */ one) => new Run(one, store));
    this.endS = Math.max(...this.runs.map((run) => run.endS), 1e-9);
    this.from = 0;
    this.to = this.endS;
    this.cursor = -1;
    this.byPhase = false;
    this.showsCritical = false;
    this.showsOuter = true;
    this.rows = this.runs.reduce((sum, run) => sum + run.ranks.length, 0);
    this.rowHeight = Math.max(9, Math.min(46, 560 / this.rows));
    this.canvas = make("canvas", { class: "time", tabindex: "0", role: "img", "aria-label": place.dataset.said || "" });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.legend = make("div", { class: "legend" });
    this.picked = make("div", { class: "picked", "aria-live": "polite" });
    this.picked.textContent = "Click a stage for what it costs; wheel or + and - to zoom, drag or arrows to pan, 0 for all.";
    place.append(this.controls(), this.legend, this.canvas, this.tip, this.picked);
    this.memory = new MemoryChart(place, this.runs, store, (s) => this.setCursor(s));
    this.listen();
    this.look();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(place);
    onTheme(() => { this.look(); this.paint(); });
  }

  controls() {
    /** @param {string} words @param {() => void} act */
    const button = (words, act) => {
      const found = make("button", { class: "act", type: "button" }, words);
      found.addEventListener("click", act);
      return found;
    };
    /** @param {string} words @param {boolean} on @param {(on: boolean) => void} act */
    const tick = (words, on, act) => {
      const box = make("input", { type: "checkbox" });
      box.checked = on;
      box.addEventListener("change", () => act(box.checked));
      return make("label", {}, box, ` ${words}`);
    };
    return make("div", { class: "controls" },
      button("+", () => this.zoom(0.5, (this.from + this.to) / 2)),
      button("\u2212", () => this.zoom(2, (this.from + this.to) / 2)),
      button("all", () => this.show(0, this.endS)),
      tick("critical path", false, (on) => { this.showsCritical = on; this.draw(); }),
      tick("transfers and collectives", true, (on) => { this.showsOuter = on; this.draw(); }),
      tick("colour by phase", false, (on) => { this.byPhase = on; this.look(); this.draw(); }));
  }

  /** Colours and their key. */
  look() {
    /** @type {Kind[]} */ const kinds = [];
    for (const run of this.runs)
      for (const kind of run.kinds)
        if (!kinds.some((one) => one.module === kind.module && one.phase === kind.phase)) kinds.push(kind);
    const modules = [...new Set(kinds.map((kind) => kind.module))];
    kinds.sort((a, b) => modules.indexOf(a.module) - modules.indexOf(b.module));
    const all = colors(kinds, this.byPhase);
    this.colors = this.runs.map((run) =>
      run.kinds.map((kind) => all[kinds.findIndex((one) => one.module === kind.module && one.phase === kind.phase)]));
    /** @type {Map<string, string>} */ const entries = new Map();
    kinds.forEach((kind, i) => entries.set(this.byPhase ? kind.phase : `${kind.module} ${kind.phase}`, all[i]));
    /** @param {number} lane */
    const has = (lane) => this.runs.some((run) => run.outer.tracks.some((track, k) => k % LANES.length === lane && track.items.length));
    if (has(1)) entries.set("transfer", ink("--transfer"));
    if (has(2)) entries.set("collective", ink("--collective"));
    if (has(0)) entries.set("optimizer step", ink("--step"));
    entries.set("idle", ink("--idle"));
    this.legend.replaceChildren(...[...entries].map(([name, color]) =>
      make("span", {}, make("i", { style: `background:${color}` }), name)));
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width) return;
    this.width = width;
    this.height = AXIS + this.rows * this.rowHeight + this.runs.length * HEAD;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.memory.resize(width);
    this.draw();
  }

  /** @param {number} s */
  x(s) { return LEFT + ((s - this.from) / (this.to - this.from)) * ((this.width || 1) - LEFT - RIGHT); }

  /** @param {number} x */
  s(x) { return this.from + ((x - LEFT) / ((this.width || 1) - LEFT - RIGHT)) * (this.to - this.from); }

  /** The first pixel of a run's rows. @param {number} number */
  top(number) {
    let y = 0;
    for (let i = 0; i < number; i++) y += HEAD + this.runs[i].ranks.length * this.rowHeight;
    return y + HEAD;
  }

  /** Run and row at a height, or null. @param {number} y */
  rowAt(y) {
    for (let i = 0; i < this.runs.length; i++) {
      const row = Math.floor((y - this.top(i)) / this.rowHeight);
      if (row >= 0 && row < this.runs[i].ranks.length) return { number: i, run: this.runs[i], row, within: (y - this.top(i)) / this.rowHeight - row };
    }
    return null;
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    const span = Math.min(Math.max(to - from, this.endS * 1e-6), this.endS);
    this.from = Math.min(Math.max(from, 0), this.endS - span);
    this.to = this.from + span;
    this.draw();
  }

  /** @param {number} factor @param {number} around [s] */
  zoom(factor, around) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  /** @param {number} s */
  setCursor(s) {
    if (s === this.cursor) return;
    this.cursor = s;
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    /** @type {{x: number, from: number, to: number, moved: boolean}|null} */ let drag = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const step = ((event.deltaX || event.deltaY) / (this.width || 1)) * (this.to - this.from);
        this.show(this.from + step, this.to + step);
      } else this.zoom(Math.exp(event.deltaY * 0.0015), this.s(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, from: this.from, to: this.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const step = ((drag.x - event.offsetX) / ((this.width || 1) - LEFT - RIGHT)) * (drag.to - drag.from);
        drag.moved = drag.moved || Math.abs(drag.x - event.offsetX) > 3;
        if (drag.moved) this.show(drag.from + step, drag.to + step);
      }
      this.hover(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.pick(event.offsetX, event.offsetY);
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cursor = -1; this.memory.cursor(-1); this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      const step = (this.to - this.from) / 8, middle = (this.from + this.to) / 2;
      /** @type {Record<string, () => void>} */ const acts = {
        ArrowLeft: () => this.show(this.from - step, this.to - step), ArrowRight: () => this.show(this.from + step, this.to + step),
        "+": () => this.zoom(0.5, middle), "=": () => this.zoom(0.5, middle), "-": () => this.zoom(2, middle),
        0: () => this.show(0, this.endS), Home: () => this.show(0, this.to - this.from),
        End: () => this.show(this.endS - (this.to - this.from), this.endS),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  /** What is at a point, in lines. @param {number} x @param {number} y @returns {string} */
  said(x, y) {
    const at = this.rowAt(y), time = this.s(x);
    if (!at || x < LEFT || time < 0 || time > at.run.endS) return "";
    const { run, row } = at, near = (2 * (this.to - this.from)) / (this.width || 1);
    if (this.showsOuter && at.within > LANES[0][1]) {
      const outer = run.outerAt(row, time, near);
      if (outer >= 0)
        return `${run.texts[run.outerName[outer]]}\nrank ${run.ranks[row]}, ${seconds(run.outer.lasted[outer])} from ${seconds(run.outer.start[outer])}`;
    }
    const stage = run.stageAt(row, time);
    if (stage < 0) {
      const outer = run.outerAt(row, time, 0);
      if (outer >= 0 && run.outer.lane[outer] === 0)
        return `${run.texts[run.outerName[outer]]}\nrank ${run.ranks[row]}, ${seconds(run.outer.lasted[outer])}`;
      return this.idle(run, row, time);
    }
    const kind = run.kinds[run.kind[stage]];
    const costly = run.costly[run.group[stage]].map((one) => `  ${seconds(one.s)}  ${one.name}`);
    const waited = run.texts[run.wait[stage]];
    return [
      `${run.texts[run.label[stage]]}: ${kind.module} ${kind.phase}, microbatch ${run.microbatch[stage]}, rank ${run.ranks[row]}`,
      `${seconds(run.lasted[stage])} from ${seconds(run.start[stage])}`,
      ...(waited ? [waited] : []),
      ...(costly.length ? ["costliest operators of the longest such stage:", ...costly] : []),
    ].join("\n");
  }

  /** Why a rank is idle. @param {Run} run @param {number} row @param {number} time @returns {string} */
  idle(run, row, time) {
    const next = run.first[row] + run.stages[row].after(time);
    if (next === run.first[row + 1]) return `rank ${run.ranks[row]}: no further stage`;
    const before = next > run.first[row] ? run.start[next - 1] + run.lasted[next - 1] : 0;
    const why = run.texts[run.wait[next]];
    return `rank ${run.ranks[row]} idle for ${seconds(run.start[next] - before)}\n${run.texts[run.label[next]]} ${why}`;
  }

  /** @param {number} x @param {number} y */
  hover(x, y) {
    const words = this.said(x, y), time = this.s(x);
    this.tip.hidden = !words;
    if (words) {
      this.tip.textContent = words;
      const box = this.canvas.offsetTop;
      this.tip.style.left = `${Math.min(x + 14, (this.width || 0) - this.tip.offsetWidth - 8)}px`;
      this.tip.style.top = `${box + y + 16}px`;
    }
    this.cursor = time >= this.from && time <= this.to ? time : -1;
    this.memory.cursor(this.cursor);
    this.draw();
  }

  /** @param {number} x @param {number} y */
  pick(x, y) {
    const at = this.rowAt(y);
    if (at) this.memory.choose(at.number, at.row);
    const words = this.said(x, y);
    if (words) this.picked.textContent = words;
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.paint(); });
  }

  paint() {
    const context = this.canvas.getContext("2d");
    if (!context || !this.width) return;
    this.memory.show(this.from, this.to);
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height || 0);
    this.runs.forEach((_, number) => this.paintRun(context, number));
    context.fillStyle = ink("--ground");
    context.fillRect(0, 0, LEFT, this.height || 0);
    context.fillRect(this.width - RIGHT, 0, RIGHT, this.height || 0);
    this.runs.forEach((_, number) => this.paintNames(context, number));
    this.paintAxis(context);
    if (this.cursor >= 0) {
      context.fillStyle = ink("--soft");
      context.fillRect(Math.round(this.x(this.cursor)), 0, 1, (this.height || 0) - AXIS);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} number */
  paintRun(context, number) {
    const run = this.runs[number], top = this.top(number), height = this.rowHeight;
    const palette = (this.colors || [])[number], [low, high] = this.showsOuter ? LANES[0] : [0.06, 0.94];
    const end = Math.min(this.x(run.endS), (this.width || 0) - RIGHT);
    context.fillStyle = ink("--idle");
    run.ranks.forEach((_, row) =>
      context.fillRect(LEFT, top + (row + low) * height, Math.max(end - LEFT, 0), (high - low) * height));
    const brush = new Brush(), blend = new Blend(palette);
    /** @type {number[][]} */ const wide = [];
    for (let row = 0; row < run.ranks.length; row++) {
      const track = run.stages[row];
      this.eachBox(track, (left, right, i) => {
        const color = right - left > 1.01 ? palette[run.kind[i]] : blend.of(run, track, this.s(left), this.s(right));
        brush.box(color, left, top + (row + low) * height, right, (high - low) * height);
        if (right - left > 12) wide.push([left, right, row, i]);
      });
      const lanes = this.showsOuter ? [["--step", ...LANES[0]], ["--transfer", ...LANES[1]], ["--collective", ...LANES[2]]] : [["--step", 0.06, 0.94]];
      lanes.forEach(([color, upper, lower], lane) => {
        const tall = (Number(lower) - Number(upper)) * height, y = top + (row + Number(upper)) * height, name = ink(String(color));
        this.eachBox(run.outer.track(row, lane), (left, right) => brush.box(name, left, y, right, tall));
      });
    }
    brush.paint(context);
    this.paintNumbers(context, run, palette.map(inkOn), wide, top + low * height, (high - low) * height);
    if (this.showsCritical) this.paintCritical(context, run, top);
    context.fillStyle = ink("--soft");
    if (run.makespanS >= this.from && run.makespanS <= this.to)
      for (let y = top; y < top + run.ranks.length * height; y += 7) context.fillRect(this.x(run.makespanS), y, 1, 4);
  }

  /** Boxes of a track that are seen, at most one per pixel. @param {Track} track
   * @param {(left: number, right: number, box: number) => void} act pixels, and which box begins there */
  eachBox(track, act) {
    const { items, start, lasted } = track, edge = (this.width || 0) - RIGHT;
    let filled = LEFT;
    for (let k = track.first(this.from); k < items.length; k++) {
      const i = items[k], left = this.x(start[i]);
      if (left > edge) break;
      const right = this.x(start[i] + lasted[i]);
      if (right <= filled) { // nothing of it is seen, nor of those that end within the same pixel
        k = track.first(this.s(filled), k + 1) - 1;
        continue;
      }
      const seen = Math.max(left, filled);
      filled = Math.max(right, seen + 1);
      act(seen, Math.min(filled, edge), i);
    }
  }

  /** Microbatches in the boxes that have room. @param {CanvasRenderingContext2D} context @param {Run} run
   * @param {string[]} inks @param {number[][]} wide left and right ends, row and stage @param {number} top @param {number} tall */
  paintNumbers(context, run, inks, wide, top, tall) {
    const size = Math.min(11, tall * 0.62);
    if (size < 6.5) return;
    context.font = `${size}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const [left, right, row, i] of wide) {
      const words = String(run.microbatch[i]);
      if (right - left < words.length * size * 0.62 + 3) continue;
      context.fillStyle = inks[run.kind[i]];
      context.fillText(words, (left + right) / 2, top + row * this.rowHeight + tall / 2 + 0.5);
    }
  }

  /** Frames around what is on the critical path. @param {CanvasRenderingContext2D} context @param {Run} run @param {number} top */
  paintCritical(context, run, top) {
    const height = this.rowHeight;
    context.lineWidth = 2;
    context.strokeStyle = context.fillStyle = ink("--critical");
    run.critical.tracks.forEach((track, k) => {
      const lane = k % LANES.length, [low, high] = lane === 0 && !this.showsOuter ? [0.06, 0.94] : LANES[lane];
      if (lane > 0 && !this.showsOuter) return;
      const y = top + (Math.floor(k / LANES.length) + low) * height, tall = (high - low) * height;
      this.eachBox(track, (left, right) => {
        if (right - left > 4) context.strokeRect(left + 1, y + 1, right - left - 2, tall - 2);
        else context.fillRect(left, y, Math.max(right - left, 1.2), tall);
      });
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {number} number */
  paintNames(context, number) {
    const run = this.runs[number], top = this.top(number), step = Math.max(1, Math.ceil(13 / this.rowHeight));
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.font = "12px system-ui, sans-serif";
    for (let row = 0; row < run.ranks.length; row += step) {
      const chosen = this.memory.run === number && this.memory.row === row;
      context.fillStyle = chosen ? ink("--accent") : ink("--ink");
      context.fillText(`rank ${run.ranks[row]}`, LEFT - 8, top + (row + 0.45) * this.rowHeight);
    }
    context.textAlign = "left";
    context.fillStyle = ink("--ink");
    context.font = "600 12px system-ui, sans-serif";
    const words = this.runs.length > 1 ? `${run.name}: ` : "";
    context.fillText(`${words}iteration ${seconds(run.iterationS)}, bubble ${(100 * run.bubble).toFixed(1)} %`, 8, top - HEAD / 2, (this.width || 0) - 16);
  }

  /** @param {CanvasRenderingContext2D} context */
  paintAxis(context) {
    const y = (this.height || 0) - AXIS, span = this.to - this.from;
    const raw = span / Math.max(2, Math.floor(((this.width || 0) - LEFT) / 110)), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= raw) || raw;
    const [scale, unit] = step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e3, "ms"] : [1e6, "us"];
    const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
    context.fillStyle = ink("--soft");
    context.fillRect(LEFT, y, (this.width || 0) - LEFT - RIGHT, 1);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let tick = Math.ceil(this.from / step) * step; tick <= this.to + step * 1e-6; tick += step) {
      context.fillRect(Math.round(this.x(tick)), y, 1, 4);
      context.fillText((tick * scale).toFixed(digits), this.x(tick), y + 7);
    }
    context.textAlign = "right";
    context.fillText(`time [${unit}]`, LEFT - 18, y + 7);
  }
}
